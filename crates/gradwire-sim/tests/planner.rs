//! What a plan must and must not do.

use std::path::Path;

use gradwire_sim::planner::{Convergence, Limits, Plan, Wish, plan};
use gradwire_sim::step::{Calibration, Practice, Transformer};
use gradwire_topology::Cluster;

fn made(nic: &str, (hosts, devices): (u32, u32), model: &str, wire: &str) -> Result<Plan, String> {
    let text = format!(
        "[[hosts]]\ncount = {hosts}\ndevice = \"a100\"\ndevices = {devices}\nnvlink = \"300GB/s\"\nnic = \"{nic}\"\n\
         nics = {devices}\nwire = \"{wire}\"\n"
    );
    let cluster = Cluster::parse(Path::new("test.toml"), &text).expect("good");
    let wish = Wish {
        model: Transformer::named(model).expect("known"),
        devices: hosts * devices,
        batch: hosts * devices * 4,
        tokens: 1e9,
        practice: Practice::default(),
        layout: None,
        limits: Limits { micro_batch: 4, ..Limits::default() },
        convergence: Convergence::default(),
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
