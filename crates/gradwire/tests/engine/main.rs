//! The engine as its callers see it: ranks are threads of one process with an engine each.

mod codecs;
mod collectives;
mod concurrency;
mod endings;
mod job;
mod messages;
mod mismatches;
mod priorities;
mod requests;
mod statuses;
mod timelines;
mod values;
