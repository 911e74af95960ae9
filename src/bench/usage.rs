//! What processes cost, as the kernel counts it. Linux only; elsewhere nothing is told.

use std::fs;

/// Clock ticks of `/proc` a second: the same on every Linux.
const TICKS_PER_S: f64 = 100.0;

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// CPU time, user and system, in seconds.
    pub(super) cpu_s: f64,
    /// Resident memory now, in MiB.
    pub(super) rss_mib: f64,
    /// The most resident memory so far, in MiB.
    pub(super) peak_rss_mib: f64,
}

/// What the process has used; none if that cannot be known.
pub(super) fn of(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold anything; after its bracket the fields are numbers.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kib| kib / 1_024.0)
    };
    Some(Usage {
        cpu_s: (user + system) / TICKS_PER_S,
        rss_mib: mib("VmRSS:")?,
        peak_rss_mib: mib("VmHWM:")?,
    })
}

/// The process that listens on a port of this machine and whose command line names `program`, if it can be seen.
pub(super) fn listening(port: u16, programs: &[&str]) -> Option<u32> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().filter_map(|line| socket_on(line, port)).collect::<Vec<_>>())
        .collect();
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command);
        if !programs.iter().any(|program| command.contains(program)) {
            return None;
        }
        let mut open = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        open.any(|file| {
            fs::read_link(file.path()).is_ok_and(|to| sockets.iter().any(|s| to.as_os_str() == s.as_str()))
        })
        .then_some(pid)
    })
}

/// `socket:[inode]` of a line of `/proc/net/tcp` that listens on `port`.
fn socket_on(line: &str, port: u16) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (_, hex) = fields.get(1)?.rsplit_once(':')?;
    let listens = *fields.get(3)? == "0A" && u16::from_str_radix(hex, 16).ok()? == port;
    listens.then(|| format!("socket:[{}]", fields.get(9).copied().unwrap_or_default()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_is_found_by_its_port() {
        let usage = of(std::process::id()).unwrap();
        assert!(
            usage.rss_mib > 1.0 && usage.peak_rss_mib >= usage.rss_mib && usage.cpu_s >= 0.0,
            "{usage:?}"
        );
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let me = std::env::args().next().unwrap();
        assert_eq!(listening(port, &[&me]), Some(std::process::id()));
        assert_eq!(listening(port, &["no-such-program"]), None);
    }
}
