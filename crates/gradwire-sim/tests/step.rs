//! Laws of a step.

use std::path::Path;

use gradwire_sim::step::{
    Calibration, Job, Layout, PipelineOrder, Practice, Recompute, Transformer, simulate,
};
use gradwire_topology::{Cluster, Rate};
use proptest::prelude::*;

fn cluster(hosts: u32) -> Cluster {
    let text = format!(
        "[[hosts]]\ncount = {hosts}\ndevice = \"h100\"\ndevices = 8\nnvlink = \"450GB/s\"\nnic = \"100gbit\"\n"
    );
    Cluster::parse(Path::new("test.toml"), &text).expect("good")
}

fn job(tensor: u32, pipeline: u32, data: u32, zero: u8, order: PipelineOrder) -> Job {
    let layout = Layout {
        tensor,
        pipeline,
        data,
        batch: data * 16,
        zero,
        order,
        recompute: Recompute::Full,
        sequence_parallel: tensor > 1,
        ..Layout::default()
    };
    let model = Transformer::named("llama3-8b").expect("known");
    Job { model, layout, practice: Practice::default() }
}

proptest! {
    #[test]
    fn parts_add_up_and_slower_networks_never_help(
        tensor in 0u32..4, pipeline in 0u32..4, data in 0u32..5, zero in 0u8..4,
        zero_bubble in any::<bool>(), slower in 1f64..100.0,
    ) {
        let order = if zero_bubble {
            PipelineOrder::ZeroBubble
        } else {
            PipelineOrder::OneForwardOneBackward
        };
        let job = job(1 << tensor, 1 << pipeline, 1 << data, zero, order);
        let cluster = cluster(job.layout.devices().div_ceil(8));
        let calibration = Calibration::default();
        let report = simulate(&job, &cluster, &calibration).expect("it divides");
        let parts = report.compute_s + report.bubble_s + report.exposed_s()
            + report.optimizer_s + report.slowdown_s;
        prop_assert!((parts / report.step_s - 1.0).abs() < 0.02, "{parts} of {report:?}");
        prop_assert!(report.mfu > 0.0 && report.mfu < 1.0);
        prop_assert!((0.0..1.0).contains(&report.communication_share));
        for (name, group) in report.groups() {
            prop_assert!(group.exposed_s <= group.total_s * (1.0 + 1e-9) + 1e-12, "{name} {group:?}");
        }
        let slow = cluster.with_nic_rate(Rate(12.5e9 / slower));
        let slower = simulate(&job, &slow, &calibration).expect("it divides");
        prop_assert!(slower.step_s >= report.step_s * (1.0 - 1e-9));
    }

    #[test]
    fn no_step_beats_the_peak(tensor in 0u32..4, pipeline in 0u32..3, data in 0u32..3) {
        let order = PipelineOrder::OneForwardOneBackward;
        let job = job(1 << tensor, 1 << pipeline, 1 << data, 0, order);
        let cluster = cluster(job.layout.devices().div_ceil(8));
        let report = simulate(&job, &cluster, &Calibration::default()).expect("it divides");
        let operations = job.model.step_operations(f64::from(job.layout.batch));
        let bound = operations / f64::from(job.layout.devices()) / cluster.host().device.peak.0;
        prop_assert!(report.step_s > bound);
    }
}

/// A word of the error, and what makes the layout wrong.
type Case = (&'static str, fn(&mut Layout));

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let calibration = Calibration::default();
    let cases: [Case; 5] = [
        ("heads", |layout| layout.tensor = 3),
        ("devices", |layout| (layout.data, layout.batch) = (64, 64)),
        ("batch", |layout| layout.micro_batch = 7),
        ("experts", |layout| layout.expert = 2),
        ("layers", |layout| layout.pipeline = 64),
    ];
    for (word, change) in cases {
        let mut job = job(1, 1, 2, 0, PipelineOrder::OneForwardOneBackward);
        change(&mut job.layout);
        let error = simulate(&job, &cluster(1), &calibration).expect_err(word);
        assert!(error.contains(word) && !error.contains('\n'), "{error}");
    }
}
