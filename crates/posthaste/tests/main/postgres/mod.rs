//! What only PostgreSQL can show: what a claim costs it, and what others are told of it.

mod cost;
mod durability;
mod session;
mod wake;
