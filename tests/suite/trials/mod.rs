//! Trials from public bug reports of other systems, each named after its row: what they got wrong is right here.

mod cancel;
mod lease;
mod retry;
mod servers;
mod storage;
mod submit;
