//! What ranks find, and how a lab is asked for.

use std::os::unix::process::CommandExt;

use super::setup::{self, Background, Setup, assert_status, sorted_lines, text};

#[test]
fn ranks_find_torchruns_environment() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let script = "echo $(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK \
                  $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE $OMP_NUM_THREADS $EXTRA \
                  $GRADWIRE_LAB";
    let output = setup
        .lab_run("--hosts 2 --ranks-per-host 2 --env EXTRA=a=b -- sh -c", script)
        .env_remove("OMP_NUM_THREADS")
        .output()
        .unwrap();
    assert_status(&output, 0);
    let expected = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(host, local)| {
        let (rank, name) = (2 * host + local, &setup.name);
        format!("[{rank}] host{host} {rank}/4 {local}/2 {host} 10.77.0.1:29500 False 1 a=b {name}")
    });
    assert_eq!(sorted_lines(&output), expected);
    assert!(text(&output.stderr).contains(&format!("{}: 2 hosts", setup.name)));
    setup.assert_nothing_left();
}

#[test]
fn both_outputs_are_prefixed_unless_told_otherwise() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let output = setup.lab_run("--hosts 1 -- sh -c", "echo out; echo err >&2").output().unwrap();
    assert_eq!(text(&output.stdout), "[0] out\n");
    assert!(text(&output.stderr).contains("[0] err\n"));
    let output = setup.lab_run("--hosts 1 --no-prefix -- echo", "out").output().unwrap();
    assert_eq!(text(&output.stdout), "out\n");
}

/// Rank 1 meets rank 0 on both NICs, and nowhere else; `/sys` shows the host's own interfaces.
const MEET: &str = r"
import os, socket
rank = os.environ['RANK']
assert sorted(os.listdir('/sys/class/net')) == ['eth0', 'eth1', 'lo'], os.listdir('/sys/class/net')
if rank == '0':
    listener = socket.create_server(('', 5000))
    for _ in range(2):
        connection, address = listener.accept()
        connection.sendall(connection.recv(100))
else:
    for nic in (0, 1):
        for _ in range(100):
            try:
                connection = socket.create_connection((f'10.77.{nic}.1', 5000), 10)
                break
            except ConnectionRefusedError:
                __import__('time').sleep(0.1)
        assert connection.getsockname()[0] == f'10.77.{nic}.2'
        connection.sendall(b'hello')
        assert connection.recv(100) == b'hello'
    try:
        socket.create_connection(('127.0.0.1', 5000), 10)
        raise SystemExit('the hosts share their loopback')
    except ConnectionRefusedError:
        print('met')
";

#[test]
fn hosts_meet_on_every_nic_and_share_nothing_else() {
    if !setup::possible_with_python() {
        return;
    }
    let setup = Setup::new();
    let output = setup.lab_run("--hosts 2 --nics 2 -- python3 -c", MEET).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(text(&output.stdout), "[1] met\n");
}

#[test]
fn exec_joins_a_host_and_passes_its_status_on() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let lab =
        Background::start(&mut setup.lab_run("--hosts 2 -- sh -c", "echo up; sleep 60"), "up", 2);
    let name = &setup.name;
    let output = setup.lab(&format!("exec --name {name} --host 1 -- hostname"));
    assert_status(&output, 0);
    assert_eq!(text(&output.stdout), "host1\n");
    // Without a name: the only lab that runs.
    let output = setup.lab("exec --host 0 -- ip -brief address show dev eth0");
    assert!(text(&output.stdout).contains("10.77.0.1/24"), "{}", text(&output.stderr));
    assert_status(&setup.lab("exec -- false"), 1);
    assert_status(&setup.lab("exec -- no-such-command"), 127);
    assert_status(&setup.lab("exec --host 2 -- true"), 2);
    drop(lab);
    setup.assert_nothing_left();
}

#[test]
fn list_shows_what_runs_and_a_name_is_taken_once() {
    if !setup::possible() {
        return;
    }
    let setup = Setup::new();
    let _lab = Background::start(
        &mut setup.lab_run("--hosts 2 --rate 1gbit -- sh -c", "echo up; sleep 60"),
        "up",
        2,
    );
    let listed: serde_json::Value =
        serde_json::from_slice(&setup.lab("list --json").stdout).unwrap();
    assert_eq!(listed["labs"][0]["name"], setup.name.as_str());
    assert_eq!(listed["labs"][0]["running"], serde_json::json!([0, 1]));
    assert!(text(&setup.lab("list").stdout).contains("2 hosts, 1gbit"));
    let second = setup.lab_run("--hosts 1 --", "true").output().unwrap();
    assert_status(&second, 2);
    assert!(text(&second.stderr).contains("is running already"));
}

#[test]
fn an_ordinary_user_has_labs_too() {
    if !setup::possible() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        setup::skip("the tests run as an ordinary user already");
        return;
    }
    let setup = Setup::new();
    let mut command =
        setup.lab_run("--hosts 2 --rate 100mbit -- sh -c", "echo $(id -u) $(hostname)");
    let nobody = 65_534;
    match command.uid(nobody).gid(nobody).current_dir("/").output() {
        Ok(output) if text(&output.stderr).contains("refuses new namespaces") => {
            setup::skip(text(&output.stderr).trim());
        }
        Ok(output) => {
            assert_status(&output, 0);
            assert_eq!(sorted_lines(&output), ["[0] 0 host0", "[1] 0 host1"]);
        }
        Err(error) => {
            setup::skip(&format!("another user can't execute the built program ({error})"));
        }
    }
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    let setup = Setup::new();
    for (words, reason) in [
        ("run --hosts 0 -- true", "number of hosts must be 1 to 254"),
        ("run --hosts 2 --rate 1gb -- true", "is not a rate"),
        ("run --hosts 2 --rate-of 2=1gbit -- true", "no host 2"),
        ("run --hosts 2 --ranks-per-host 0 -- true", "number of ranks per host"),
        ("run --hosts 2 --name a/b -- true", "can't name a lab"),
        ("run --hosts 2 --loss 200% -- true", "is not a loss"),
        ("run --hosts 2", "required"),
        ("cut --host 0", "no lab is running"),
    ] {
        let output = setup.lab(words);
        assert_status(&output, 2);
        assert!(text(&output.stderr).contains(reason), "{words}: {}", text(&output.stderr));
    }
    let output = setup.lab("cut --name nobody --host 0");
    assert_status(&output, 1);
    assert!(text(&output.stderr).contains("no lab named nobody is running"));
}

#[test]
fn check_agrees_with_the_library() {
    let output = Setup::new().lab("check --json");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let available = gradwire_lab::availability().is_ok();
    assert_eq!(answer["available"], available);
    assert_eq!(output.status.success(), available);
}
