//! The search.

use gradwire_schedule::Algorithm;
use gradwire_topology::Cluster;
use serde::Serialize;

use super::convergence::{Convergence, compressions, tokens_to_same_loss};
use crate::step::layout::divisors;
use crate::step::{
    Attention, Calibration, Carrier, Job, Layout, PipelineOrder, Practice, Recompute, Report,
    Transformer, simulate,
};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The model.
    pub model: Transformer,
    /// Devices to be used; all of the cluster's where not said.
    pub devices: u32,
    /// Sequences of a step.
    pub batch: u32,
    /// Tokens to be trained on, for time and cost in all.
    pub tokens: f64,
    /// How the framework runs a step; settings of communication are searched.
    pub practice: Practice,
    /// The layout, if only settings are searched.
    pub layout: Option<Layout>,
    /// Bounds of the search.
    pub limits: Limits,
    /// What may be lost.
    pub convergence: Convergence,
}

/// Bounds of the search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Layouts that are listed.
    pub listed: usize,
    /// Most sequences of a microbatch.
    pub micro_batch: u32,
    /// Most steps between exchanges that are listed; none is chosen.
    pub local_steps: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { listed: 10, micro_batch: 8, local_steps: 1 }
    }
}

/// A layout with its settings, simulated.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// The layout.
    pub layout: Layout,
    /// The settings.
    pub practice: Practice,
    /// The step.
    pub report: Report,
    /// Predicted change of the final loss in percent; `None` where it was not measured.
    pub loss_pct: Option<f64>,
    /// Steps to the same loss, as a multiple; infinite where no number of them suffices.
    pub steps: f64,
    /// Seconds of a step times that multiple: what is minimised.
    pub cost_s: f64,
}

/// One change of settings from the layout's baseline.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// In words.
    pub name: String,
    /// Seconds of a step with it.
    pub step_s: f64,
    /// Share of the step that waits for communication with it.
    pub communication_share: f64,
    /// Predicted change of the final loss in percent; `None` where it was not measured.
    pub loss_pct: Option<f64>,
    /// Gain in percent of the time to the same loss (of a step where the change of loss is not
    /// known); negative where it costs, without end where that loss is out of reach.
    pub gain_pct: f64,
    /// Whether the plan has it.
    pub chosen: bool,
    /// Why not, if not.
    pub reason: Option<String>,
}

/// The plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Layouts by the time they take, the best first, with the settings they began with.
    pub layouts: Vec<Candidate>,
    /// What each change of settings brings to the best layout.
    pub changes: Vec<Change>,
    /// The best layout with all changes that were chosen.
    pub best: Candidate,
    /// Layouts that were looked at, and those of them that fit.
    pub looked_at: usize,
    /// Layouts whose memory suffices.
    pub fitting: usize,
    /// Days until all tokens are trained on, with the plan and with the best layout as it began.
    pub days: (f64, f64),
    /// Dollars for that.
    pub dollars: (f64, f64),
}

/// The smallest gain that is worth an error in the gradients, in percent of time to the same loss.
const WORTH_PCT: f64 = 1.0;

/// Makes a plan; `progress` is told how many layouts of how many have been simulated.
///
/// # Errors
/// When the wished practice loses more than the tolerance, or no layout fits: one line that says what
/// is missing.
pub fn plan(
    wish: &Wish,
    cluster: &Cluster,
    calibration: &Calibration,
    mut progress: impl FnMut(usize, usize),
) -> Result<Plan, String> {
    wish.convergence.admit(&wish.practice).map_err(|reason| {
        format!("{}: {reason}; a plan must not have it, `simulate` takes it", lossy(&wish.practice))
    })?;
    let layouts = wish.layout.map_or_else(|| layouts(wish, cluster), |layout| vec![layout]);
    if let [layout] = layouts[..] {
        layout.check(&wish.model, cluster)?;
    }
    let mut fitting: Vec<Candidate> = Vec::new();
    let mut closest: Option<(f64, String)> = None;
    for (number, layout) in layouts.iter().enumerate() {
        progress(number, layouts.len());
        let Ok(candidate) = candidate(wish, cluster, calibration, *layout, &wish.practice) else {
            continue;
        };
        if candidate.report.fits {
            fitting.push(candidate);
        } else {
            let bytes = candidate.report.memory.total();
            if closest.as_ref().is_none_or(|(least, _)| bytes < *least) {
                closest = Some((bytes, layout.name()));
            }
        }
    }
    progress(layouts.len(), layouts.len());
    fitting.sort_by(|a, b| a.cost_s.total_cmp(&b.cost_s));
    let Some(first) = fitting.first() else {
        return Err(nothing_fits(wish, cluster, layouts.len(), closest));
    };
    let (changes, best) = improve(wish, cluster, calibration, first)?;
    let steps = wish.tokens / (f64::from(wish.batch) * wish.model.sequence as f64);
    let days = |it: &Candidate| steps * it.cost_s / 86_400.0;
    let price = cluster.host().device.dollars_per_hour * 24.0 * f64::from(best.layout.devices());
    let (with, without) = (days(&best), days(first));
    Ok(Plan {
        looked_at: layouts.len(),
        fitting: fitting.len(),
        days: (with, without),
        dollars: (with * price, without * price),
        changes,
        best,
        layouts: fitting.into_iter().take(wish.limits.listed).collect(),
    })
}

fn nothing_fits(
    wish: &Wish,
    cluster: &Cluster,
    looked_at: usize,
    closest: Option<(f64, String)>,
) -> String {
    let device = &cluster.host().device;
    match closest {
        Some((bytes, layout)) => format!(
            "{} does not fit {} x {}: the smallest of {looked_at} layouts ({layout}) takes {:.0} GB a \
             device, it has {:.0}; use more devices or a smaller batch",
            wish.model.name,
            wish.devices,
            device.name,
            bytes / 1e9,
            device.memory.0 / 1e9
        ),
        None => format!(
            "no layout of {} on {} devices divides a batch of {}; use a batch that is a multiple of \
             the devices, or fewer of them",
            wish.model.name, wish.devices, wish.batch
        ),
    }
}

fn candidate(
    wish: &Wish,
    cluster: &Cluster,
    calibration: &Calibration,
    layout: Layout,
    practice: &Practice,
) -> Result<Candidate, String> {
    let job = Job { model: wish.model.clone(), layout, practice: practice.clone() };
    let mut report = simulate(&job, cluster, calibration)?;
    report.spans = Vec::new();
    let loss_pct = wish.convergence.loss_pct(practice);
    let steps = tokens_to_same_loss(wish.model.parameters(), wish.tokens, loss_pct.unwrap_or(0.0));
    let cost_s = report.step_s * steps;
    Ok(Candidate { layout, practice: practice.clone(), report, loss_pct, steps, cost_s })
}

/// What of a practice costs loss, in words.
fn lossy(practice: &Practice) -> String {
    match &practice.compression {
        _ if practice.local_steps > 1 => format!("exchange every {} steps", practice.local_steps),
        Some(compression) => format!("compress to {}", compression.name),
        None => "the practice".to_owned(),
    }
}

/// All layouts that make sense: tensor groups within a host, whole layers in stages, long sequences
/// shared by context groups, powers of two for microbatches.
fn layouts(wish: &Wish, cluster: &Cluster) -> Vec<Layout> {
    let host = u64::from(cluster.host().devices);
    let devices = u64::from(wish.devices);
    let mut all = Vec::new();
    for tensor in divisors(wish.model.heads).filter(|it| host.is_multiple_of(*it)) {
        for pipeline in divisors(devices / tensor).filter(|it| devices.is_multiple_of(tensor * it))
        {
            if pipeline > u64::from(wish.model.layers) || pipeline > 128 {
                continue;
            }
            let left = devices / tensor / pipeline;
            for context in contexts(&wish.model).filter(|it| left.is_multiple_of(*it)) {
                let data = left / context;
                if u64::from(wish.batch).is_multiple_of(data) {
                    let sizes = Layout {
                        tensor: tensor as u32,
                        context: context as u32,
                        pipeline: pipeline as u32,
                        data: data as u32,
                        ..Layout::default()
                    };
                    all.extend(variants(wish, &sizes));
                }
            }
        }
    }
    all
}

/// Tokens of a sequence that one device handles well; only longer sequences are shared.
const LONG: u64 = 8192;

/// Sizes of context groups that are worth a look: each device keeps at least half of [`LONG`]
/// tokens, in two equal pieces (of the causal mask's cheap and of its dear end).
fn contexts(model: &Transformer) -> impl Iterator<Item = u64> {
    let sequence = model.sequence;
    let shares = move |size: &u64| {
        *size == 1
            || sequence > LONG && sequence.is_multiple_of(2 * size) && sequence / size >= LONG / 2
    };
    (0..12).map(|power| 1 << power).filter(shares)
}

fn variants(wish: &Wish, sizes: &Layout) -> Vec<Layout> {
    let Layout { tensor, context, pipeline, data, .. } = *sizes;
    let per_copy = wish.batch / data;
    let micro: Vec<u32> = (0..8)
        .map(|power| 1 << power)
        .filter(|it| *it <= wish.limits.micro_batch && per_copy.is_multiple_of(*it))
        .collect();
    let experts = wish.model.experts.map_or(vec![1], |it| {
        let fits = |size: &u64| u64::from(data * context).is_multiple_of(*size);
        let sizes = divisors(it.count).filter(fits).map(|it| it as u32);
        sizes.collect::<Vec<u32>>().into_iter().rev().take(2).collect()
    });
    let interleaves: &[u32] = if pipeline > 1 { &[1, 2, 4] } else { &[1] };
    // Sharing gradients or parameters is for every microbatch, of which a pipeline has many.
    let zeros: &[u8] = match (data * context, pipeline) {
        (1, _) => &[0],
        (_, 1) => &[0, 1, 2, 3],
        _ => &[0, 1],
    };
    // Fused attention keeps nothing that could be computed again selectively.
    let recomputes: &[Recompute] = match wish.practice.attention {
        Attention::Unfused => &[Recompute::None, Recompute::Selective, Recompute::Full],
        Attention::Flash => &[Recompute::None, Recompute::Full],
    };
    let mut all = Vec::new();
    for micro_batch in micro {
        for &interleave in interleaves {
            let whole = wish.model.layers.is_multiple_of(pipeline * interleave);
            if interleave > 1 && !whole {
                continue;
            }
            for &zero in zeros {
                for &recompute in recomputes {
                    for &expert in &experts {
                        all.push(Layout {
                            expert,
                            interleave,
                            micro_batch,
                            batch: wish.batch,
                            zero,
                            sequence_parallel: tensor > 1,
                            recompute,
                            ..*sizes
                        });
                    }
                }
            }
        }
    }
    all
}

/// A change of settings.
type Setting = (String, Box<dyn Fn(&mut Layout, &mut Practice)>, bool);

fn settings(wish: &Wish) -> Vec<Setting> {
    let plain = |name: &str, apply: fn(&mut Layout, &mut Practice)| -> Setting {
        (name.to_owned(), Box::new(apply), false)
    };
    let mut all = vec![
        plain("gradients travel under the backward pass", |_, it| it.overlap_gradients = true),
        plain("parameters travel under the forward pass", |_, it| it.overlap_parameters = true),
        plain("zero-bubble pipeline", |layout, _| {
            layout.interleave = 1;
            layout.order = PipelineOrder::ZeroBubble;
        }),
        plain("tensor-parallel collectives under products", |_, it| it.overlap_tensor = true),
        plain("gradwire: hosts reduce first, then all NICs", |_, it| {
            it.carrier = Carrier::Gradwire
        }),
    ];
    for (name, algorithm) in
        [("hierarchical", Algorithm::Direct), ("hierarchical-ring", Algorithm::Ring)]
    {
        let apply = move |_: &mut Layout, it: &mut Practice| {
            it.carrier = Carrier::Gradwire;
            it.between_hosts = Some(algorithm);
        };
        all.push((format!("gradwire, GRADWIRE_ALGORITHM={name}"), Box::new(apply), false));
    }
    for megabytes in [4.0, 16.0, 64.0, 256.0] {
        let apply = move |_: &mut Layout, it: &mut Practice| it.bucket_bytes = megabytes * 1e6;
        all.push((format!("buckets of {megabytes:.0} MB"), Box::new(apply), false));
    }
    for compression in compressions(wish.practice.gradient_bytes) {
        let name = format!("compress to {} ({} bits)", compression.name, compression.bits);
        let apply = move |_: &mut Layout, it: &mut Practice| {
            it.carrier = Carrier::Gradwire;
            it.compression = Some(compression.clone());
        };
        all.push((name, Box::new(apply), true));
    }
    let steps = (1..12).map(|power| 1 << power).filter(|it| *it <= wish.limits.local_steps);
    for local_steps in steps {
        let apply = move |_: &mut Layout, it: &mut Practice| it.local_steps = local_steps;
        all.push((format!("exchange every {local_steps} steps"), Box::new(apply), true));
    }
    all
}

/// Tries every setting by itself, then keeps adding the one that brings most until none is worth it.
fn improve(
    wish: &Wish,
    cluster: &Cluster,
    calibration: &Calibration,
    first: &Candidate,
) -> Result<(Vec<Change>, Candidate), String> {
    let settings = settings(wish);
    let with = |from: &Candidate, setting: &Setting| {
        let (mut layout, mut practice) = (from.layout, from.practice.clone());
        setting.1(&mut layout, &mut practice);
        candidate(wish, cluster, calibration, layout, &practice)
    };
    let mut best = first.clone();
    let mut chosen: Vec<usize> = Vec::new();
    // First what costs no accuracy; only what is still gained after that is worth an error.
    let mut lossy = false;
    loop {
        let open =
            |(at, setting): &(usize, &Setting)| !chosen.contains(at) && (lossy || !setting.2);
        let tried = settings.iter().enumerate().filter(open);
        let gains = tried.filter_map(|(at, setting)| {
            let next = with(&best, setting).ok().filter(|it| it.report.fits)?;
            wish.convergence.admit(&next.practice).ok()?;
            let gain = 100.0 * (1.0 - next.cost_s / best.cost_s);
            let worth = if setting.2 { WORTH_PCT } else { 0.05 };
            (gain > worth).then_some((at, gain, next))
        });
        // Of several that bring as much, the simplest, which stands first.
        let Some((at, _, next)) = gains.rev().max_by(|a, b| a.1.total_cmp(&b.1)) else {
            if lossy {
                break;
            }
            lossy = true;
            continue;
        };
        chosen.push(at);
        best = next;
    }
    let change = |(at, setting): (usize, &Setting)| {
        let alone = with(first, setting).ok()?;
        let gain_pct = 100.0 * (1.0 - alone.cost_s / first.cost_s);
        let chosen = chosen.contains(&at);
        let more = with(&best, setting).ok().map_or(0.0, |it| 1.0 - it.cost_s / best.cost_s);
        let admitted = wish.convergence.admit(&alone.practice);
        let reason = (!chosen).then(|| reason(&alone, admitted, setting.2, gain_pct, 100.0 * more));
        Some(Change {
            name: setting.0.clone(),
            step_s: alone.report.step_s,
            communication_share: alone.report.communication_share,
            loss_pct: alone.loss_pct,
            gain_pct,
            chosen,
            reason,
        })
    };
    let mut changes: Vec<Change> = settings.iter().enumerate().filter_map(change).collect();
    changes.sort_by(|a, b| b.gain_pct.total_cmp(&a.gain_pct));
    Ok((changes, best))
}

/// `gain_pct` is what a change brings by itself, `more_pct` what it brings on top of the plan.
fn reason(
    alone: &Candidate,
    admitted: Result<(), String>,
    loses: bool,
    gain_pct: f64,
    more_pct: f64,
) -> String {
    if !alone.report.fits {
        return "does not fit in memory".to_owned();
    }
    if let Err(why) = admitted {
        return format!("refused: {why}");
    }
    if loses && more_pct <= WORTH_PCT {
        return "refused: it costs accuracy and gains nothing beyond the plan".to_owned();
    }
    if gain_pct <= 0.05 { "gains nothing".to_owned() } else { "others bring more".to_owned() }
}
