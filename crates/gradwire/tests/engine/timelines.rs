//! What a trace says must have happened: every operation, in order, with all of its bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gradwire::{Codec, Collective, Communicator, DataType, Memory, ReduceOp, Request, trace};
use serde_json::Value;

use crate::job::{WIRES, job};

/// A directory that is gone with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        Scratch(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// The complete events of a rank's file, and what the file says of itself.
    fn read(&self, rank: u32) -> (Vec<Value>, Value) {
        let text = std::fs::read(self.0.join(format!("rank{rank}.json"))).unwrap();
        let document: Value = serde_json::from_slice(&text).unwrap();
        let events = document["traceEvents"].as_array().unwrap();
        let about = events.iter().find(|it| it["name"] == "gradwire").unwrap()["args"].clone();
        (events.iter().filter(|it| it["ph"] == "X").cloned().collect(), about)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn of<'a>(events: &'a [Value], category: &str) -> Vec<&'a Value> {
    let category = format!("gradwire.{category}");
    events.iter().filter(|it| it["cat"] == category.as_str()).collect()
}

fn interval(event: &Value) -> (f64, f64) {
    let start = event["ts"].as_f64().unwrap();
    (start, start + event["dur"].as_f64().unwrap())
}

fn bytes(events: &[&Value]) -> u64 {
    events.iter().map(|it| it["args"]["bytes"].as_u64().unwrap()).sum()
}

fn labelled(world: &Communicator, tensor: &mut [f32], label: &str, codec: Option<Codec>) {
    let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
    request.output = vec![Memory::of(tensor)];
    request.label = Some(label.to_owned());
    request.codec = codec;
    // SAFETY: the tensor is borrowed until the operation is done.
    unsafe { world.submit(request).unwrap() }.wait(None).unwrap();
}

/// A microsecond: what rounding to Chrome's unit may cost.
const ROUNDING_US: f64 = 0.01;

#[test]
fn a_trace_holds_every_operation_with_all_of_its_tiles() {
    for wire in WIRES {
        let scratch = Scratch::new(&format!("timeline-{wire}"));
        job(3, &[("transport", wire), ("trace", scratch.text())], |engine, world| {
            assert!(engine.is_tracing());
            let mut tensor = vec![1f32; 300_000];
            let start = trace::now();
            labelled(world, &mut tensor, "bucket 0", None);
            labelled(world, &mut tensor, "bucket 1", Some("int8".parse().unwrap()));
            engine.record_span("layer", "forward", start, trace::now(), None);
            world.barrier().unwrap();
        });
        let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
        for rank in 0..3 {
            let (events, about) = scratch.read(rank);
            check_rank(&events, &about, rank);
            for (events, ways) in
                [(of(&events, "send"), &mut sent), (of(&events, "receive"), &mut received)]
            {
                for it in events {
                    let (peer, arguments) = (it["args"]["peer"].as_u64().unwrap(), &it["args"]);
                    let ends = if it["cat"] == "gradwire.send" {
                        (u64::from(rank), peer)
                    } else {
                        (peer, u64::from(rank))
                    };
                    let key = arguments["key"].as_str().unwrap().to_owned();
                    let way = (key, ends, arguments["edge"].as_u64(), arguments["tile"].as_u64());
                    let (start, end) = interval(it);
                    let handed = start - arguments["queued_us"].as_f64().unwrap();
                    assert!(ways.insert(way, (handed, end, bytes(&[it]))).is_none(), "{it}");
                }
            }
        }
        // What was sent has arrived, as much of it, and not before it was sent: the ranks of one
        // host share a clock. What moves as the job ends may be seen by one end alone.
        let arrived = received.iter().filter_map(|(way, it)| Some((sent.get(way)?, it)));
        let arrived: Vec<_> = arrived.collect();
        assert!(arrived.len() > 50 && arrived.len() * 10 >= sent.len() * 9, "{}", arrived.len());
        for ((handed, _, sent_bytes), (_, arrived, arrived_bytes)) in arrived {
            assert_eq!(sent_bytes, arrived_bytes);
            assert!(*handed <= arrived + ROUNDING_US, "{handed} {arrived}");
        }
    }
}

fn check_rank(events: &[Value], about: &Value, rank: u32) {
    assert_eq!(
        (about["about"]["rank"].as_u64(), about["lost_events"].as_u64()),
        (Some(rank.into()), Some(0))
    );
    let clock = &about["clock"][0];
    // Both read the same clock, so the truth is 0, and within half a round trip of what was found.
    let found = clock["measured_offset_ns"].as_i64().unwrap().unsigned_abs();
    assert!(2 * found <= clock["round_trip_ns"].as_u64().unwrap() + 1, "{clock}");
    assert_eq!((clock["offset_ns"].as_i64(), clock["same_clock"].as_bool()), (Some(0), Some(true)));
    let operations = of(events, "operation");
    let names: Vec<&str> = operations.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names[..2], ["bucket 0", "bucket 1"]);
    assert!(
        names.contains(&"barrier(uint8, tree)")
            || names.iter().any(|it| it.starts_with("barrier("))
    );
    for operation in &operations {
        check_operation(events, operation);
    }
    let (raw, coded) = (&operations[0]["args"], &operations[1]["args"]);
    assert_eq!(
        (raw["bytes"].as_u64(), coded["codec"].as_str().map(|it| &it[..4])),
        (Some(1_200_000), Some("int8"))
    );
    assert!(coded["sent"].as_u64().unwrap() * 3 < raw["sent"].as_u64().unwrap());
    let work = |operation: &Value, kind: &str| {
        let key = &operation["key"];
        of(events, "work")
            .iter()
            .filter(|it| it["args"]["key"] == *key && it["name"] == kind)
            .count()
    };
    assert!(work(raw, "reduce") > 0 && work(raw, "encode") == 0);
    assert!(work(coded, "encode") > 0 && work(coded, "decode") > 0);
    let own = events.iter().find(|it| it["cat"] == "forward").unwrap();
    let waits = of(events, "wait");
    assert!(waits.iter().all(|it| it["args"]["drives"] == true));
    let (start, end) = interval(own);
    let within = waits.iter().filter(|it| it["tid"] == own["tid"]).filter(|it| {
        let (began, ended) = interval(it);
        start <= began + ROUNDING_US && ended <= end + ROUNDING_US
    });
    assert!(within.count() >= 2, "the waits for the two operations lie within the span");
}

/// Tiles and work lie within their operation, and its bytes are those of its tiles.
fn check_operation(events: &[Value], operation: &Value) {
    let arguments = &operation["args"];
    let (submitted, ended) = interval(operation);
    assert!(ended >= submitted && arguments["error"].is_null(), "{operation}");
    let of_it = |category: &str| -> Vec<&Value> {
        of(events, category)
            .into_iter()
            .filter(|it| it["args"]["key"] == arguments["key"])
            .collect()
    };
    for (category, total) in [("send", "sent"), ("receive", "received")] {
        let tiles = of_it(category);
        assert_eq!(bytes(&tiles), arguments[total].as_u64().unwrap(), "{category}: {operation}");
        // A tile may come before the operation is posted here, never after it has ended.
        assert!(tiles.iter().all(|it| interval(it).1 <= ended + ROUNDING_US), "{operation}");
    }
    for work in of_it("work") {
        let (start, end) = interval(work);
        assert!(submitted <= start + ROUNDING_US && end <= ended + ROUNDING_US, "{work}");
    }
}

#[test]
fn lanes_carry_one_tile_after_the_other() {
    let scratch = Scratch::new("timeline-lanes");
    let settings = [("transport", "tcp"), ("lanes", "2"), ("trace", scratch.text())];
    job(2, &settings, |_, world| {
        // The first one makes connections; on a busy machine it is over before the second lane is.
        for _ in 0..8 {
            world.all_reduce(&mut vec![1f32; 1 << 20], ReduceOp::Sum).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (events, _) = scratch.read(0);
    let mut rows: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for it in events.iter().filter(|it| it["name"] == "tile") {
        rows.entry(it["tid"].as_u64().unwrap()).or_default().push(interval(it));
    }
    assert!(rows.len() >= 3, "two lanes, both ways: {}", rows.len());
    for tiles in rows.values_mut() {
        tiles.sort_by(|a, b| a.0.total_cmp(&b.0));
        let overlaps = tiles.windows(2).any(|pair| pair[0].1 > pair[1].0 + ROUNDING_US);
        assert!(!overlaps, "{tiles:?}");
    }
}

#[test]
fn a_trace_of_a_part_has_a_bound_and_says_what_it_lost() {
    let scratch = Scratch::new("timeline-bound");
    job(2, &[("trace_events", "100"), ("transport", "shm")], |engine, world| {
        let mut tensor = vec![1f32; 1000];
        world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        assert!(!engine.is_tracing() && engine.write_trace(&scratch.0).is_err());
        for _ in 0..2 {
            engine.start_trace().unwrap();
            for _ in 0..40 {
                world.all_reduce(&mut tensor, ReduceOp::Max).unwrap();
            }
            let path = engine.write_trace(&scratch.0).unwrap();
            assert_eq!(path, scratch.0.join(format!("rank{}.json", world.rank())));
        }
    });
    let (events, about) = scratch.read(1);
    assert_eq!(events.len(), 100);
    assert!(about["lost_events"].as_u64().unwrap() > 20, "{about}");
    let last = events.iter().map(|it| interval(it).1).fold(0.0, f64::max);
    assert!(last <= about["ended_us"].as_f64().unwrap() + ROUNDING_US);
}

#[test]
fn a_dead_peer_costs_the_trace_no_more_than_its_second_comparison() {
    let scratch = Scratch::new("timeline-dead");
    job(2, &[("trace", scratch.text()), ("transport", "tcp")], |engine, world| {
        let mut tensor = vec![1f32; 1000];
        world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        if world.rank() == 1 {
            // The other one waits for a message that never comes.
            std::thread::sleep(Duration::from_millis(100));
            engine.shutdown(Duration::ZERO);
        } else {
            world.receive(&mut tensor, 1, 7).unwrap_err();
        }
    });
    for rank in 0..2 {
        let (events, about) = scratch.read(rank);
        assert_eq!(about["clock"].as_array().unwrap().len(), 1, "{about}");
        let failed = of(&events, "operation").iter().any(|it| !it["args"]["error"].is_null());
        assert_eq!(failed, rank == 0);
    }
}
