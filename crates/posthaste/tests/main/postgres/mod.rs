//! What only PostgreSQL can show: what a claim costs it.

mod cost;
