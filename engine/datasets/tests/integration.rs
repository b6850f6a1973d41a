//! Data sets from outside, in one program. Apart is `idx_properties`, which reads how much memory its process has.

mod download;
mod idx;
