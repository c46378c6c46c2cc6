//! The `gradwire` command as a user meets it. One program, because linking one for each subcommand
//! takes longer than running their tests.

mod bench;
mod foresight;
mod lab;
mod schedule;
mod top;
mod trace;
