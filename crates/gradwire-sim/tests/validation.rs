//! What `docs/validation.md` promises.

use gradwire_sim::validation::tables::Tables;
use gradwire_sim::validation::{Role, validate};

#[test]
fn errors_stay_below_what_is_promised() {
    let validation = validate(&Tables::new(None)).expect("the tables can be read");
    let judged = |key: &str| {
        let section = validation.section(key).expect(key);
        assert_eq!(section.role, Role::Judged);
        section.score
    };
    let multi = judged("vtrain-multi");
    assert!(multi.mape_pct <= 8.0, "{multi:?}");
    assert!(multi.mape_pct < multi.null_mape_pct);
    for key in ["sc21-table1", "sc21-ptdp", "sc21-zero3", "selective"] {
        let score = judged(key);
        assert!(score.mape_pct <= 10.0, "{key}: {score:?}");
    }
    // ZeRO 3 gains from every doubling of the network, and less each time.
    let rates: Vec<f64> = validation.zero3_slope.iter().map(|point| point.1).collect();
    let gains: Vec<f64> = rates.windows(2).map(|pair| pair[1] / pair[0]).collect();
    assert!(gains.iter().all(|gain| *gain >= 1.0 && *gain <= 2.0), "{rates:?}");
    assert!(gains.windows(2).all(|pair| pair[1] <= pair[0] + 1e-9), "{rates:?}");
}
