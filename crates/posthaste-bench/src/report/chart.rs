//! The report as charts: bars with their spread.
