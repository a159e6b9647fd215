//! What only PostgreSQL can show: what a claim costs it, and what others are told of it, and what its crash loses.

mod cost;
mod durability;
mod never_analysed;
mod parts;
mod session;
mod stream;
mod stream_ahead;
mod stream_moved;
mod tail;
mod wake;
