//! Whose socket the other end of a loopback connection is. Source: proc_pid_net(5), `net/tcp` and `net/tcp6`; Linux only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Returns the user id of the process that holds the socket bound to `peer` and connected to `local`, both on this
/// machine. `None` when the system does not say. Reads files: for a blocking thread.
pub(super) fn uid_of_peer(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    // A client may reach an IPv4 listener from an IPv6 socket, and then stands in the other table.
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|path| {
        let table = std::fs::read_to_string(path).ok()?;
        find_uid(&table, peer, local)
    })
}

fn find_uid(table: &str, peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (peer, local) = (canonical(peer), canonical(local));
    table.lines().skip(1).find_map(|line| {
        // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (from, to) = (address(columns.next()?)?, address(columns.next()?)?);
        if from != peer || to != local {
            return None;
        }
        let state = columns.next()?;
        let uid = columns.nth(3)?.parse().ok()?;
        let inode = columns.nth(1)?;
        // A socket that no process holds any more shows user 0 and inode 0: that is nobody, not root.
        let held = inode != "0" && state != "06";
        held.then_some(uid)
    })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Reads `0100007F:1CFC`: each 32-bit word of the address as the machine's own number, the port as a number.
fn address(column: &str) -> Option<SocketAddr> {
    let (ip, port) = column.split_once(':')?;
    let word = |from: usize| Some(u32::from_str_radix(ip.get(from..from + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (index, chunk) in octets.chunks_exact_mut(4).enumerate() {
                chunk.copy_from_slice(&word(index * 8)?);
            }
            Ipv6Addr::from(octets).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    // As a little-endian machine shows it.
    #[cfg(target_endian = "little")]
    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CFC 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1001 1 0000000000000000
   1: 0100007F:C350 0100007F:1CFC 01 00000000:00000000 00:00000000 00000000  1007        0 1002 1 0000000000000000
   2: 0100007F:1CFC 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 1003 1 0000000000000000
   3: 0100007F:C351 0100007F:1CFC 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0000000000000000
   4: 0000000000000000FFFF00000100007F:C352 0000000000000000FFFF00000100007F:1CFC 01 00000000:00000000 00:00000000 00000000  1008        0 1004 1 0
   5: 00000000000000000000000001000000:C353 00000000000000000000000001000000:1CFC 01 00000000:00000000 00:00000000 00000000  1009        0 1005 1 0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_client_end_is_found_in_either_table() {
        let find = |peer: &str, local: &str| find_uid(TABLE, peer.parse().unwrap(), local.parse().unwrap());
        assert_eq!(find("127.0.0.1:50000", "127.0.0.1:7420"), Some(1007));
        assert_eq!(find("127.0.0.1:50002", "127.0.0.1:7420"), Some(1008));
        assert_eq!(find("[::1]:50003", "[::1]:7420"), Some(1009));
        assert_eq!(find("127.0.0.1:50001", "127.0.0.1:7420"), None, "nobody holds it any more");
        assert_eq!(find("127.0.0.1:50000", "127.0.0.1:7421"), None);
        assert_eq!(find_uid("broken\nlines : here", "1.1.1.1:1".parse().unwrap(), "1.1.1.1:2".parse().unwrap()), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn our_own_connection_is_ours() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has no second case.
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            assert_eq!(peer, client.local_addr().unwrap());
            let uid = uid_of_peer(peer, server.local_addr().unwrap());
            assert_eq!(uid, Some(rustix::process::geteuid().as_raw()), "{bind}");
        }
    }
}
