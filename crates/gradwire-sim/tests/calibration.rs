//! What a few measured steps say about steps that were not measured.

use gradwire_sim::step::{Calibration, Job, Layout, Practice, Recompute, Transformer, simulate};
use gradwire_sim::validation::fit::{fit_and_judge, fit_few};
use gradwire_sim::validation::tables::{Measured, Tables, selene};

fn mean_error(steps: &[Measured], calibration: &Calibration) -> f64 {
    let error = |step: &Measured| {
        let report = simulate(&step.job, &step.cluster, calibration).expect("it is possible");
        (report.step_s / step.seconds - 1.0).abs()
    };
    steps.iter().map(error).sum::<f64>() / steps.len() as f64
}

/// Steps as a cluster would take them that is as `truth` says.
fn steps(truth: &Calibration) -> Vec<Measured> {
    let mut steps = Vec::new();
    for (name, tensor, pipeline, devices, micro_batch) in [
        ("gpt3-1.3b", 1, 1, 16, 4),
        ("gpt3-1.3b", 2, 1, 32, 8),
        ("gpt3-6.7b", 8, 1, 16, 2),
        ("gpt3-6.7b", 4, 2, 64, 1),
        ("gpt3-13b", 8, 2, 32, 2),
        ("gpt3-1.3b", 1, 2, 64, 2),
        ("gpt3-6.7b", 8, 2, 128, 4),
        ("gpt3-13b", 8, 4, 64, 1),
        ("gpt3-350m", 1, 1, 32, 8),
        ("gpt3-13b", 4, 4, 128, 2),
    ] {
        let data = devices / tensor / pipeline;
        let (batch, recompute) = (data * micro_batch * 4, Recompute::Full);
        let layout =
            Layout { tensor, pipeline, data, micro_batch, batch, recompute, ..Layout::default() };
        let model = Transformer::named(name).expect("it is known");
        let job = Job { model, layout, practice: Practice::default() };
        let cluster = selene(devices);
        let seconds = simulate(&job, &cluster, truth).expect("it is possible").step_s;
        let (group, scheme) = (name.to_owned(), job.layout.name());
        steps.push(Measured { job, cluster, seconds, group, scheme });
    }
    steps
}

#[test]
fn five_steps_of_another_cluster_predict_five_others() {
    let mut truth = Calibration::default();
    truth.efficiency.pace = 1.25;
    truth.efficiency.memory = 0.6;
    truth.efficiency.launch = 60e-6;
    truth.fabric.network = 0.6;
    let (measured, others) = {
        let mut steps = steps(&truth);
        let others = steps.split_off(5);
        (steps, others)
    };
    let before = mean_error(&others, &Calibration::default());
    let (fitted, rows) = fit_and_judge(&measured, &Calibration::default(), |_, _| {});
    let after = mean_error(&others, &fitted);
    assert!(before > 0.15 && after < 0.04, "{before} to {after} by {fitted:?}");
    // What the rows say of each other is what to expect of the others.
    let left_out = rows.iter().map(|row| (row.left_out.expect("of five") - 1.0).abs());
    let expected = left_out.sum::<f64>() / rows.len() as f64;
    assert!(expected > after / 4.0 && expected < 0.1, "{expected} for {after}");
}

#[test]
fn one_step_sets_the_pace_and_little_else() {
    let mut truth = Calibration::default();
    truth.efficiency.pace = 1.5;
    let steps = steps(&truth);
    let (fitted, rows) = fit_and_judge(&steps[..1], &Calibration::default(), |_, _| {});
    assert!((rows[0].fitted - 1.0).abs() < 0.01 && rows[0].left_out.is_none(), "{rows:?}");
    assert!(mean_error(&steps[1..], &fitted) < 0.05, "{fitted:?}");
}

#[test]
fn a_cluster_that_is_as_expected_stays_so() {
    let start = Calibration::default();
    let fitted = fit_few(&steps(&start), &start);
    assert!((fitted.efficiency.pace - 1.0).abs() < 0.01, "{fitted:?}");
    assert!((fitted.fabric.network / start.fabric.network - 1.0).abs() < 0.05, "{fitted:?}");
}

/// vTrain's single-node steps ran under a profiler, with launches four times as slow as built in.
#[test]
fn a_few_real_steps_predict_hundreds_of_others() {
    let all = Tables::new(None).vtrain_single().expect("the table can be read");
    let every = all.len() / 8;
    let few: Vec<Measured> = all.iter().step_by(every).cloned().collect();
    let others: Vec<Measured> =
        all.iter().enumerate().filter(|(at, _)| at % every != 0).map(|it| it.1.clone()).collect();
    let fitted = fit_few(&few, &Calibration::default());
    let (before, after) =
        (mean_error(&others, &Calibration::default()), mean_error(&others, &fitted));
    assert!(after < before / 2.0, "{} of {}: {before} to {after}", few.len(), all.len());
}
