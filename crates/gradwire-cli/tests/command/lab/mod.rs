//! `gradwire lab` as a user meets it, on real namespaces. Where the machine can't make labs, each
//! test says why and passes.

mod ending;
mod links;
mod running;
mod setup;
