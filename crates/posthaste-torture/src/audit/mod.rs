//! In the making.

use anyhow::Result;

use crate::history::Writer;
use crate::plan::Table;

pub async fn install(_database: &str, _tables: &[Table]) -> Result<()> {
    Ok(())
}

pub async fn collect(_database: &str, _tables: &[Table], _history: &Writer) -> Result<()> {
    Ok(())
}
