//! What links carry, and what a cut does.

use super::setup::{self, Background, Setup, assert_status, text};

/// Rank 0 sends to each other rank in turn for two seconds, while the receiver counts; prints the
/// rates in Mbit/s on the wire (1448 bytes of payload in 1514 bytes of frame).
const MEASURE: &str = r"
import os, socket, time
rank, world = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
if rank == 0:
    for peer in range(1, world):
        while True:
            try:
                connection = socket.create_connection((f'10.77.0.{peer + 1}', 5000), 10)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        block, until = bytes(1 << 16), time.monotonic() + 2
        while time.monotonic() < until:
            connection.sendall(block)
        connection.close()
else:
    connection, _ = socket.create_server(('', 5000)).accept()
    began, count = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        count += len(data)
    print(round(count * 8 / (time.monotonic() - began) / 1e6 * 1514 / 1448, 1))
";

#[test]
fn links_carry_their_rate_within_a_tenth() {
    if !setup::possible_with_python() {
        return;
    }
    let setup = Setup::new();
    let words = "--hosts 3 --rate 200mbit --rate-of 2=50mbit -- python3 -c";
    let output = setup.lab_run(words, MEASURE).output().unwrap();
    assert_status(&output, 0);
    for (prefix, rate) in [("[1] ", 200.0), ("[2] ", 50.0)] {
        let measured: f64 = text(&output.stdout)
            .lines()
            .find_map(|line| line.strip_prefix(prefix)?.parse().ok())
            .unwrap();
        assert!((0.9 * rate..=1.1 * rate).contains(&measured), "{measured} instead of {rate}");
    }
}

/// Rank 0 sends a datagram every 10 ms and rank 1 answers; a TCP connection is held beside it.
/// Rank 0 cuts host 1, finds a second of silence without any error or loss of carrier, restores it
/// and waits for the next answers.
const CUT: &str = r"
import os, socket, subprocess, time
lab = [os.environ['GRADWIRE'], 'lab']
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ['RANK'] == '1':
    datagrams.bind(('', 6000))
    stream, _ = socket.create_server(('', 5000)).accept()
    stream.setblocking(False)
    datagrams.settimeout(0.01)
    while True:
        try:
            datagrams.sendto(*datagrams.recvfrom(100))
        except TimeoutError:
            pass
        try:
            data = stream.recv(100)
            if not data:
                break
            stream.sendall(data)
        except BlockingIOError:
            pass
else:
    while True:
        try:
            stream = socket.create_connection(('10.77.0.2', 5000), 10)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    datagrams.settimeout(0.01)
    datagrams.connect(('10.77.0.2', 6000))
    def answered(seconds):
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            datagrams.send(b'x')
            try:
                datagrams.recv(100)
                return True
            except TimeoutError:
                pass
        return False
    assert answered(5), 'no answer over a whole link'
    subprocess.run([*lab, 'cut', '--host', '1'], check=True)
    answered(0.1)
    stream.sendall(b'under way')
    assert not answered(1), 'an answer over a cut link'
    for host in '0', '1':
        where = [*lab, 'exec', '--host', host, 'cat', '/sys/class/net/eth0/carrier']
        assert subprocess.run(where, capture_output=True, check=True).stdout == b'1\n'
    subprocess.run([*lab, 'restore', '--host', '1'], check=True)
    assert answered(1), 'no answer within a second of the repair'
    stream.settimeout(20)
    assert stream.recv(100) == b'under way'
    print('healed')
";

#[test]
fn a_cut_link_is_silent_and_heals() {
    if !setup::possible_with_python() {
        return;
    }
    let setup = Setup::new();
    let output =
        setup.lab_run("--hosts 3 --timeout 60s -- python3 -c", &for_two_ranks(CUT)).output();
    let output = output.unwrap();
    assert_status(&output, 0);
    assert_eq!(text(&output.stdout), "[0] healed\n");
}

/// The third host only watches.
fn for_two_ranks(script: &str) -> String {
    format!("import os, sys\nif os.environ['RANK'] == '2': sys.exit()\n{script}")
}

#[test]
fn rates_change_and_cuts_show_while_it_runs() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let words = "--hosts 2 --nics 2 --rate 1gbit -- sh -c";
    let _lab = Background::start(&mut setup.lab_run(words, "echo up; sleep 60"), "up", 2);
    assert_status(&setup.lab("rate --host 1 100mbit"), 0);
    assert_status(&setup.lab("cut --host 0 --nic 1"), 0);
    let shown = text(&setup.lab("exec --host 1 -- tc qdisc show dev eth1").stdout);
    assert!(shown.contains("rate 100Mbit"), "{shown}");
    let listed = text(&setup.lab("list").stdout);
    assert!(listed.contains("[host 0 NIC 1: cut]"), "{listed}");
    assert!(listed.contains("[host 1 NIC 0: 100mbit]"), "{listed}");
    assert_status(&setup.lab("restore --host 0"), 0);
    assert!(!text(&setup.lab("list").stdout).contains("cut"));
    for (words, reason) in [
        ("cut --host 2", "there is no host 2 in this lab (0 to 1)"),
        ("restore --host 0 --nic 2", "there is no NIC 2 in this lab (0 to 1)"),
        ("rate --host 9 1gbit", "there is no host 9"),
    ] {
        let output = setup.lab(words);
        assert_status(&output, 2);
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}

#[test]
fn delay_is_given_or_refused_for_want_of_netem() {
    if !setup::possible_with_python() {
        return;
    }
    let setup = Setup::new();
    let connect = "import os, socket, time
if os.environ['RANK'] == '0':
    server = socket.create_server(('', 5000)); server.accept()
else:
    while True:
        began = time.monotonic()
        try: socket.create_connection(('10.77.0.1', 5000), 10); break
        except ConnectionRefusedError: time.sleep(0.1)
    print(time.monotonic() - began >= 0.06)";
    let words = "--hosts 2 --rate 100mbit --delay 30ms -- python3 -c";
    let output = setup.lab_run(words, connect).output().unwrap();
    if gradwire_lab::has_netem() {
        assert_status(&output, 0);
        assert_eq!(text(&output.stdout), "[1] True\n");
    } else {
        assert_status(&output, 1);
        assert!(
            text(&output.stderr).contains("this kernel has no netem"),
            "{}",
            text(&output.stderr)
        );
        setup.assert_nothing_left();
    }
}
