//! (being written)
use crate::command::Batch;
use crate::state::resident::Resident;
use crate::store::Family;
pub fn keys_of(_: &Resident, _: &Batch) -> Vec<(Family, Vec<u8>)> {
    Vec::new()
}
