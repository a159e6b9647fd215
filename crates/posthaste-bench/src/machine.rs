//! Where and when it was measured.

use anyhow::Result;
use time::OffsetDateTime;

/// The day, in UTC.
pub(crate) fn date() -> Result<String> {
    let now = OffsetDateTime::now_utc();
    Ok(format!("{:04}-{:02}-{:02}", now.year(), u8::from(now.month()), now.day()))
}

/// Processors, memory and kernel.
pub(crate) fn describe() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let of = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = of(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let memory = of(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let kilobytes: u64 = memory.split(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} × {model}, {} GB, Linux {}", kilobytes.div_ceil(1 << 20), kernel.trim())
}
