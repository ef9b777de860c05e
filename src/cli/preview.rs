//! `punctual preview`

use clap::Args;

use super::body::Body;
use super::exit::Code;
use super::failure::Failure;
use super::occurrence::{RuleArgs, shown};
use super::output::Output;
use crate::client::Client;

/// What `preview` is given.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("wanted").required(true).args(["cron", "every", "at", "after_end", "file"]))]
pub(super) struct Preview {
    #[command(flatten)]
    rule: RuleArgs,
    /// The request as JSON, {"rule": {…}}; `-` is standard input. Flags stand over it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<std::path::PathBuf>,
    /// Occurrences later than this instant (default: now).
    #[arg(long, value_name = "TIME")]
    after: Option<String>,
    /// How many.
    #[arg(long, value_name = "N", default_value_t = 10)]
    count: u32,
}

pub(super) async fn run(args: Preview, client: &Client, output: &Output) -> Result<Code, Failure> {
    let mut body = Body::from_file(args.file.as_deref())?;
    args.rule.lay_over(&mut body);
    body.set("after", args.after);
    body.set("count", Some(args.count));
    let answer = client.preview(&body.value()).await?;
    output.answer(&answer, |p| {
        if !p.description.is_empty() {
            output.line(&p.description);
        }
        let rows: Vec<_> = p
            .occurrences
            .iter()
            .map(|o| vec![shown(Some(o.nominal_at)), o.local.clone(), o.reason.clone()])
            .collect();
        output.table(&["NOMINAL", "LOCAL", "NOTE"], &rows);
        if p.exhausted {
            output.note("there are no more");
        }
        for warning in &p.warnings {
            output.note(&format!("warning: {}", warning.detail));
        }
    });
    Ok(Code::Ok)
}
