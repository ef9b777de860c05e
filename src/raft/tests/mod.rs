//! Tests of a whole node: the library's own storage suite, the guards, three nodes over loopback.

mod cluster;
mod guards;
mod machine;
mod suite;
