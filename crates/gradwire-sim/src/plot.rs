//! Plots as SVG: predicted against measured, and lines over a sweep.

use std::fmt::Write;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;
const COLORS: [&str; 6] = ["#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#4a5568"];

/// Points of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

/// What is drawn around the points.
#[derive(Clone, Debug, PartialEq)]
pub struct Axes<'a> {
    /// On top.
    pub title: &'a str,
    /// Below.
    pub x: &'a str,
    /// At the left.
    pub y: &'a str,
    /// Whether both axes are logarithmic.
    pub logarithmic: bool,
    /// Whether points are joined.
    pub lines: bool,
    /// Whether the diagonal and 10 % around it are drawn.
    pub diagonal: bool,
}

struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn over(values: impl Iterator<Item = f64>, logarithmic: bool) -> Self {
        let usable = |value: &f64| value.is_finite() && (!logarithmic || *value > 0.0);
        let (low, high) =
            values.filter(usable).fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), it| {
                (low.min(it), high.max(it))
            });
        if low > high {
            return Self { low: 1.0, high: 10.0, logarithmic };
        }
        let (low, high) = if logarithmic {
            (low / 1.15, high * 1.15)
        } else {
            (low.min(0.0), if high > 0.0 { high * 1.05 } else { 1.0 })
        };
        Self { low, high, logarithmic }
    }

    fn at(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
            return decades
                .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect();
        }
        let step = 10f64.powf(((self.high - self.low) / 5.0).log10().floor());
        let count = (self.high - self.low) / step;
        let step = if count > 25.0 {
            5.0 * step
        } else if count > 10.0 {
            2.0 * step
        } else {
            step
        };
        (0..=(self.high / step) as u32).map(|number| f64::from(number) * step).collect()
    }
}

/// Draws series.
pub fn plot(axes: &Axes, series: &[Series]) -> String {
    let all = || series.iter().flat_map(|it| it.points.iter());
    let (mut x, mut y) = (
        Scale::over(all().map(|point| point.0), axes.logarithmic),
        Scale::over(all().map(|point| point.1), axes.logarithmic),
    );
    if axes.diagonal {
        (x.low, x.high) = (x.low.min(y.low), x.high.max(y.high));
        (y.low, y.high) = (x.low, x.high);
    }
    let place = |(px, py): (f64, f64)| {
        (
            LEFT + x.at(px) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y.at(py) * (HEIGHT - TOP - BOTTOM),
        )
    };
    let mut body = String::new();
    frame(&mut body, axes, &x, &y, &place);
    for (number, it) in series.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        draw(&mut body, axes, it, color, &place);
        let legend = TOP + 14.0 + 15.0 * number as f64;
        let _ = write!(
            body,
            r#"<circle cx="{}" cy="{}" r="4" fill="{color}"/>"#,
            LEFT + 12.0,
            legend - 4.0
        );
        text(&mut body, LEFT + 22.0, legend, &it.name, "start", 11);
    }
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{body}</svg>"#
    )
}

fn draw(
    body: &mut String,
    axes: &Axes,
    series: &Series,
    color: &str,
    place: &impl Fn((f64, f64)) -> (f64, f64),
) {
    if axes.lines {
        let points: Vec<String> = series
            .points
            .iter()
            .map(|point| place(*point))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = write!(
            body,
            r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="2"/>"#,
            points.join(" ")
        );
    }
    for (x, y) in series.points.iter().map(|point| place(*point)) {
        let _ = write!(
            body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{color}" fill-opacity="0.7"/>"#
        );
    }
}

fn frame(
    body: &mut String,
    axes: &Axes,
    x: &Scale,
    y: &Scale,
    place: &impl Fn((f64, f64)) -> (f64, f64),
) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in x.ticks() {
        let (at, _) = place((tick, y.low.max(1e-300)));
        line(body, (at, TOP), (at, bottom), "#e2e8f0");
        text(body, at, bottom + 16.0, &number(tick), "middle", 10);
    }
    for tick in y.ticks() {
        let (_, at) = place((x.low.max(1e-300), tick));
        line(body, (LEFT, at), (right, at), "#e2e8f0");
        text(body, LEFT - 6.0, at + 4.0, &number(tick), "end", 10);
    }
    if axes.diagonal {
        for (factor, color) in [(1.0f64, "#718096"), (1.1, "#cbd5e0"), (1.0 / 1.1, "#cbd5e0")] {
            let (low, high) = (x.low * factor.max(1.0), x.high / f64::max(factor, 1.0));
            line(body, place((low / factor, low)), place((high / factor, high)), color);
        }
    }
    line(body, (LEFT, TOP), (LEFT, bottom), "#2d3748");
    line(body, (LEFT, bottom), (right, bottom), "#2d3748");
    text(body, LEFT, 24.0, axes.title, "start", 14);
    text(body, (LEFT + right) / 2.0, HEIGHT - 16.0, axes.x, "middle", 12);
    let _ = write!(
        body,
        r#"<text transform="translate(16 {}) rotate(-90)" text-anchor="middle" font-size="12">{}</text>"#,
        (TOP + bottom) / 2.0,
        escape(axes.y)
    );
}

fn number(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    format!("{rounded}")
}

fn line(body: &mut String, from: (f64, f64), to: (f64, f64), color: &str) {
    let _ = write!(
        body,
        r#"<path d="M{:.1} {:.1}L{:.1} {:.1}" stroke="{color}" fill="none"/>"#,
        from.0, from.1, to.0, to.1
    );
}

fn text(body: &mut String, x: f64, y: f64, text: &str, anchor: &str, size: u32) {
    let _ = write!(
        body,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}">{}</text>"#,
        escape(text)
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_drawn_within_the_frame() {
        let axes = Axes {
            title: "a < b",
            x: "measured",
            y: "predicted",
            logarithmic: true,
            lines: false,
            diagonal: true,
        };
        let series =
            Series { name: "s".into(), points: vec![(0.1, 0.2), (3.0, 4.0), (70.0, 60.0)] };
        let svg = plot(&axes, &[series]);
        assert!(svg.contains("a &lt; b"));
        assert_eq!(svg.matches("r=\"3.5\"").count(), 3);
        for part in svg.split("cx=\"").skip(1) {
            let x: f64 = part.split('"').next().and_then(|it| it.parse().ok()).expect("a number");
            assert!((LEFT..=WIDTH).contains(&x), "{x}");
        }
        assert!(plot(&axes, &[]).ends_with("</svg>"));
    }
}
