//! What a plan must and must not do.

use std::path::Path;

use gradwire_sim::planner::{Convergence, Limits, Plan, Wish, plan};
use gradwire_sim::step::{Calibration, Practice, Transformer};
use gradwire_topology::Cluster;

fn made(nic: &str, (hosts, devices): (u32, u32), model: &str, wire: &str) -> Result<Plan, String> {
    let model = Transformer::named(model).expect("known");
    tolerating(0.1, nic, (hosts, devices), model, wire)
}

fn tolerating(
    tolerance_pct: f64,
    nic: &str,
    (hosts, devices): (u32, u32),
    model: Transformer,
    wire: &str,
) -> Result<Plan, String> {
    let text = format!(
        "[[hosts]]\ncount = {hosts}\ndevice = \"a100\"\ndevices = {devices}\nnvlink = \"300GB/s\"\nnic = \"{nic}\"\n\
         nics = {devices}\nwire = \"{wire}\"\n"
    );
    let cluster = Cluster::parse(Path::new("test.toml"), &text).expect("good");
    let wish = Wish {
        model,
        devices: hosts * devices,
        batch: hosts * devices * 4,
        tokens: 1e9,
        practice: Practice::default(),
        layout: None,
        limits: Limits { micro_batch: 4, ..Limits::default() },
        convergence: Convergence { tolerance_pct },
    };
    plan(&wish, &cluster, &Calibration::default(), |_, _| {})
}

#[test]
fn compression_is_refused_where_it_gains_nothing_and_chosen_where_it_does() {
    let fast = made("400gbit", (2, 8), "gpt3-6.7b", "infiniband").expect("it fits");
    assert!(fast.best.practice.compression.is_none(), "{:?}", fast.best.practice);
    let refused = fast.changes.iter().filter(|it| it.name.starts_with("compress"));
    assert!(refused.clone().count() > 0);
    for change in refused {
        assert!(!change.chosen && change.reason.is_some(), "{change:?}");
    }
    let slow = made("1gbit", (16, 1), "gpt3-350m", "ethernet").expect("it fits");
    assert!(slow.best.practice.compression.is_some(), "{:?}", slow.best.practice);
    assert!(slow.best.cost_s < slow.layouts[0].cost_s);
}

#[test]
fn what_loses_more_than_the_tolerance_is_refused_with_the_reason() {
    for tolerance in [0.0, 0.06, 0.1, 1.0, 50.0] {
        let model = Transformer::named("gpt3-350m").expect("known");
        let plan = tolerating(tolerance, "1gbit", (16, 1), model, "ethernet").expect("it fits");
        assert!(plan.best.loss_pct.is_some_and(|loss| loss <= tolerance), "{:?}", plan.best);
        for change in plan.changes.iter().filter(|it| it.loss_pct.unwrap_or(0.0) > tolerance) {
            let reason = change.reason.as_deref().expect("it is refused");
            assert!(reason.starts_with("refused") && reason.contains("tolerance"), "{change:?}");
        }
    }
    let strict = made("1gbit", (16, 1), "gpt3-350m", "ethernet").expect("it fits");
    let bits = strict.best.practice.compression.expect("it pays").bits;
    assert!(bits > 4.5, "int4 and less were measured to lose more: {bits}");
}

#[test]
fn long_sequences_are_shared() {
    let long = Transformer { sequence: 65_536, ..Transformer::named("llama3-8b").expect("known") };
    let plan = tolerating(0.1, "400gbit", (4, 8), long, "infiniband").expect("it fits");
    assert!(plan.layouts.iter().any(|it| it.layout.context > 1), "{:?}", plan.layouts[0].layout);
    let shared = plan.layouts.iter().find(|it| it.layout.context > 1).expect("there is one");
    let context = shared.report.context;
    assert!(context.total_s > 0.0 && context.bytes > 0.0 && context.exposed_s <= context.total_s);
    let short = made("400gbit", (4, 8), "gpt3-6.7b", "infiniband").expect("it fits");
    assert!(short.layouts.iter().all(|it| it.layout.context == 1));
}

#[test]
fn layouts_are_ranked_and_fit() {
    let plan = made("100gbit", (2, 8), "gpt3-13b", "ethernet").expect("it fits");
    assert!(plan.layouts.windows(2).all(|pair| pair[0].cost_s <= pair[1].cost_s));
    assert!(plan.layouts.iter().all(|it| it.report.fits && it.layout.devices() == 16));
    assert!(plan.days.0 <= plan.days.1);
}

#[test]
fn what_does_not_fit_is_said_with_numbers() {
    let error =
        made("100gbit", (1, 8), "gpt3-175b", "ethernet").expect_err("8 devices are too few");
    assert!(error.contains("GB a device") && error.contains("more devices"), "{error}");
}
