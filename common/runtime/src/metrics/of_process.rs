use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, Registry};

use super::MetricsError;

/// `USER_HZ`, in which /proc tells times; 100 on every architecture that this runs on (proc_pid_stat(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Registers `process_cpu_seconds_total` and `process_resident_memory_bytes`, as Prometheus' own clients name them.
///
/// # Errors
/// The registry has one of them.
pub fn process(registry: &Registry) -> Result<(), MetricsError> {
    let failed = |source| MetricsError { name: "process_cpu_seconds_total".to_owned(), source };
    registry.register(Box::new(Process::new().map_err(failed)?)).map_err(failed)
}

/// Read at each scrape.
struct Process {
    cpu: Counter,
    resident: Gauge,
}

impl Process {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cpu: Counter::new("process_cpu_seconds_total", "Seconds of processors that the process used")?,
            resident: Gauge::new("process_resident_memory_bytes", "Memory of the process that is in RAM")?,
        })
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        [self.cpu.desc(), self.resident.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(seconds) = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_seconds(&stat))
        {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
        }
        if let Some(bytes) = fs::read_to_string("/proc/self/status").ok().and_then(|status| resident(&status))
        {
            self.resident.set(bytes);
        }
        [self.cpu.collect(), self.resident.collect()].concat()
    }
}

/// `utime` and `stime`, the 14th and 15th field; the second one is a name that may have blanks and brackets.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    let ticks: Vec<f64> = ticks.collect::<Result<_, _>>().ok()?;
    (ticks.len() == 2).then(|| ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// `VmRSS`, in kB.
fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_memory_are_read_as_the_kernel_writes_them() {
        let stat = "123 (a) (b c) S 1 123 123 0 -1 4194560 900 0 0 0 250 50 0 0 20 0 2 0 100 1000 200";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(resident("Name:\tx\nVmRSS:\t   2048 kB\nThreads:\t2\n"), Some(2_097_152.0));
        assert_eq!((cpu_seconds("nonsense"), resident("")), (None, None));
    }

    #[test]
    fn the_process_itself_has_both() {
        let registry = Registry::new();
        process(&registry).unwrap();
        let text = super::super::render(&registry).unwrap();
        assert!(text.contains("process_cpu_seconds_total "), "{text}");
        let line = text.lines().find(|line| line.starts_with("process_resident_memory_bytes ")).unwrap();
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() > 1e6, "{line}");
        assert!(process(&registry).is_err(), "twice");
    }
}
