//! `config/reference.toml`: every key with its meaning, written from the definitions.
//!
//! Callers: a test that compares it with the file in the repository, and `punctual serve --print-reference`.

use super::keys::{KEYS, Key, PEER_KEYS, Scope};

const HEAD: &str = "\
# Every configuration key of `punctual serve --config FILE`, with its default.
# Written from the definitions in src/config/keys.rs; a test compares it. Do not edit by hand.
#
# A key that is commented out has no default. Every change needs a restart of the node.
# Flags of `punctual serve` stand over the file. Unknown keys are refused.
";

/// The reference as TOML that can be used as it is.
#[must_use]
pub fn render() -> String {
    let mut out = String::from(HEAD);
    let mut section = "";
    for key in KEYS {
        let (of, name) = key.path.rsplit_once('.').unwrap_or(("", key.path));
        if of != section {
            out.push_str(&format!("\n[{of}]\n"));
            section = of;
        }
        describe(&mut out, key, name);
    }
    out.push_str(
        "\n# The nodes that found the cluster, this one included; the same list on every node, once per\n\
         # node. Absent for a node that is alone. All three keys are required.\n# [[peers]]\n",
    );
    for key in PEER_KEYS {
        out.push_str(&format!(
            "# {} = {}  # {}\n",
            key.name, key.example, key.doc
        ));
    }
    out
}

fn describe(out: &mut String, key: &Key, name: &str) {
    out.push('\n');
    for line in key.doc {
        out.push_str(&format!("# {line}\n"));
    }
    let scope = match key.scope {
        Scope::Node => "per node",
        Scope::Cluster => "the same on every node",
    };
    out.push_str(&format!(
        "# Allowed: {}. {scope}; since {}.\n",
        key.range, key.since
    ));
    if key.default.is_empty() {
        out.push_str(&format!("# {name} = {}\n", key.example));
    } else {
        out.push_str(&format!("{name} = {}\n", key.default));
    }
}
