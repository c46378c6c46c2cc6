//! A schedule as a drawing.

use std::fmt::Write;

use super::layout::{Arrow, Layout};
use super::print;
use crate::{Rank, Schedule};

/// A self-contained SVG document: a column for each rank, time downwards, an arrow for each
/// message, coloured by chunk. Solid arrows are reduced where they end, dashed ones are kept as
/// they are. Messages that a rank sends to the same rank in the same round share an arrow.
pub fn svg(schedule: &Schedule) -> String {
    Canvas::new(schedule).draw()
}

const MARGIN: f64 = 28.0;
/// Room on the left for the numbers of the rounds.
const GUTTER: f64 = 66.0;
const HEAD: f64 = 118.0;
const FOOT: f64 = 34.0;
const ROW: f64 = 46.0;
/// Space between rounds.
const GAP: f64 = 14.0;
const LEAST_WIDTH: f64 = 760.0;
/// Above this many chunks the legend shows about as many, and names the first and the last.
const LEGEND_CHUNKS: u32 = 16;
const INK: &str = "#1f2733";
const QUIET: &str = "#6b7686";

struct Canvas<'a> {
    schedule: &'a Schedule,
    layout: Layout,
    column: f64,
    width: f64,
    text: String,
}

impl<'a> Canvas<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let ranks = f64::from(schedule.ranks().max(1));
        // Columns spread out to fill the least width, within reason.
        let column = ((LEAST_WIDTH - GUTTER - 2.0 * MARGIN) / ranks).clamp(54.0, 150.0);
        let width = (GUTTER + 2.0 * MARGIN + column * ranks).max(LEAST_WIDTH);
        Self { schedule, layout: Layout::of(schedule), column, width, text: String::new() }
    }

    fn draw(mut self) -> String {
        let height = self.bottom() + FOOT;
        let width = self.width;
        self.line(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" font-family="Inter, Helvetica, Arial, sans-serif" role="img">"#
        ));
        self.line(format_args!("<title>{}</title>", print::headline(self.schedule)));
        self.line(format_args!(r##"<rect width="100%" height="100%" fill="#ffffff"/>"##));
        self.draw_head();
        self.draw_rounds();
        self.draw_ranks();
        // Long arrows first, so that short ones stay visible.
        let mut arrows = std::mem::take(&mut self.layout.arrows);
        arrows.sort_by_key(|arrow| std::cmp::Reverse(arrow.from.abs_diff(arrow.to)));
        arrows.iter().for_each(|arrow| self.draw_arrow(arrow));
        arrows.iter().for_each(|arrow| self.draw_label(arrow));
        self.text.push_str("</svg>\n");
        self.text
    }

    fn line(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(arguments);
        self.text.push('\n');
    }

    fn x(&self, rank: Rank) -> f64 {
        MARGIN + GUTTER + self.column * (f64::from(rank) + 0.5)
    }

    /// The upper edge of a row.
    fn y(&self, row: usize) -> f64 {
        let round = self.layout.round_starts.partition_point(|&start| start <= row).max(1) - 1;
        HEAD + 30.0 + row as f64 * ROW + round as f64 * GAP
    }

    fn bottom(&self) -> f64 {
        match self.layout.rows() {
            0 => HEAD + 60.0,
            rows => self.y(rows - 1) + ROW + 8.0,
        }
    }

    fn draw_head(&mut self) {
        let summary = self.schedule.summary();
        let title = format!("{} · {}", self.schedule.collective, self.schedule.algorithm);
        self.line(format_args!(
            r#"<text x="{MARGIN}" y="40" font-size="20" font-weight="600" fill="{INK}">{title}</text>"#
        ));
        let ranks = self.schedule.ranks();
        let facts = format!(
            "{ranks} ranks · {} rounds · {} messages · busiest rank sends {:.3} of the tensor",
            summary.rounds,
            summary.messages,
            summary.most_sent()
        );
        self.line(format_args!(
            r#"<text x="{MARGIN}" y="62" font-size="13" fill="{QUIET}">{facts}</text>"#
        ));
        self.draw_legend();
    }

    fn draw_legend(&mut self) {
        let mut x = MARGIN;
        let reduces = self.schedule.collective.reduces();
        let kinds = [("reduced on arrival", ""), ("kept as it is", DASHES)];
        for (name, dashes) in kinds.into_iter().skip(usize::from(!reduces)) {
            self.line(format_args!(
                r#"<path d="M{x:.0} 84h30" stroke="{INK}" stroke-width="2"{dashes}/><text x="{:.0}" y="88" font-size="12" fill="{QUIET}">{name}</text>"#,
                x + 38.0
            ));
            x += 56.0 + 6.6 * name.len() as f64;
        }
        let chunks = self.schedule.tensor_chunks();
        self.line(format_args!(
            r#"<text x="{x:.0}" y="88" font-size="12" fill="{QUIET}">chunk</text>"#
        ));
        x += 42.0;
        let named = |chunk: u32| chunks <= LEGEND_CHUNKS || chunk == 0 || chunk == chunks - 1;
        let step = (chunks / LEGEND_CHUNKS).max(1);
        for chunk in (0..chunks).filter(|&chunk| named(chunk) || chunk.is_multiple_of(step)) {
            let colour = self.colour(chunk);
            let wide = if named(chunk) { 22.0 } else { 8.0 };
            self.line(format_args!(
                r#"<rect x="{x:.0}" y="76" width="{wide:.0}" height="16" rx="3" fill="{colour}"/>"#
            ));
            if named(chunk) {
                self.line(format_args!(
                    r##"<text x="{:.0}" y="88" font-size="11" text-anchor="middle" fill="#ffffff">{chunk}</text>"##,
                    x + wide / 2.0
                ));
            }
            x += wide + 3.0;
        }
    }

    /// Hues all around the circle, dark enough for white figures.
    fn colour(&self, chunk: u32) -> String {
        let chunks = self.schedule.tensor_chunks().max(1);
        let hue = (212.0 + 360.0 * f64::from(chunk) / f64::from(chunks)) % 360.0;
        // Yellow and green look lighter than they are.
        let lightness = if (45.0..190.0).contains(&hue) { 34.0 } else { 48.0 };
        hsl(hue, 0.68, lightness / 100.0)
    }

    fn draw_rounds(&mut self) {
        let starts = self.layout.round_starts.clone();
        for (round, pair) in (1..).zip(starts.windows(2)) {
            let top = self.y(pair[0]) - 4.0;
            let height = self.y(pair[1] - 1) + ROW + 4.0 - top;
            let width = self.width - 2.0 * MARGIN;
            self.line(format_args!(
                r##"<rect x="{MARGIN}" y="{top:.0}" width="{width:.0}" height="{height:.0}" rx="8" fill="#f4f6f9"/>"##
            ));
            self.line(format_args!(
                r#"<text x="{:.0}" y="{:.0}" font-size="12" fill="{QUIET}">round {round}</text>"#,
                MARGIN + 10.0,
                top + height / 2.0 + 4.0
            ));
        }
    }

    fn draw_ranks(&mut self) {
        let bottom = self.bottom();
        for rank in 0..self.schedule.ranks() {
            let x = self.x(rank);
            self.line(format_args!(
                r##"<path d="M{x:.1} {:.0}V{bottom:.0}" stroke="#b9c2ce" stroke-width="1.5"/>"##,
                HEAD + 14.0
            ));
            self.line(format_args!(
                r#"<circle cx="{x:.1}" cy="{HEAD}" r="14" fill="{INK}"/><text x="{x:.1}" y="{:.0}" font-size="12" font-weight="600" text-anchor="middle" fill="white">{rank}</text>"#,
                HEAD + 4.0
            ));
        }
    }

    /// Where an arrow starts and where its tip is, a little before the receiver's line.
    fn ends(&self, arrow: &Arrow) -> ((f64, f64), (f64, f64)) {
        let (x1, x2) = (self.x(arrow.from), self.x(arrow.to));
        let (y1, y2) = (self.y(arrow.start) + 5.0, self.y(arrow.end) + ROW - 5.0);
        let length = (x2 - x1).hypot(y2 - y1);
        let short = (length - 5.0) / length;
        ((x1, y1), (x1 + (x2 - x1) * short, y1 + (y2 - y1) * short))
    }

    fn draw_arrow(&mut self, arrow: &Arrow) {
        let ((x1, y1), (x2, y2)) = self.ends(arrow);
        let colour = self.colour(arrow.chunks[0]);
        let dashes = if arrow.reduces { "" } else { DASHES };
        let length = (x2 - x1).hypot(y2 - y1);
        let (along_x, along_y) = ((x2 - x1) / length, (y2 - y1) / length);
        let (base_x, base_y) = (x2 - along_x * 9.0, y2 - along_y * 9.0);
        self.line(format_args!(
            r#"<path d="M{x1:.1} {y1:.1}L{base_x:.1} {base_y:.1}" stroke="{colour}" stroke-width="2"{dashes}/>"#
        ));
        let (side_x, side_y) = (-along_y * 4.0, along_x * 4.0);
        self.line(format_args!(
            r#"<path d="M{x2:.1} {y2:.1}L{:.1} {:.1}L{:.1} {:.1}z" fill="{colour}"/><circle cx="{x1:.1}" cy="{y1:.1}" r="3" fill="{colour}"/>"#,
            base_x + side_x,
            base_y + side_y,
            base_x - side_x,
            base_y - side_y
        ));
    }

    /// Names the chunks on a pill near the sender, where arrows that cross are still apart.
    fn draw_label(&mut self, arrow: &Arrow) {
        let ((x1, y1), (x2, y2)) = self.ends(arrow);
        let name = ranges(&arrow.chunks);
        let half = 4.0 + 3.3 * name.chars().count() as f64;
        let away = (0.32 * self.column).max(half + 9.0);
        let part = away / (x2 - x1).abs().max(away);
        let (x, y) = (x1 + (x2 - x1) * part, y1 + (y2 - y1) * part);
        let colour = self.colour(arrow.chunks[0]);
        self.line(format_args!(
            r##"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="15" rx="7" fill="{colour}" stroke="#f4f6f9"/><text x="{x:.1}" y="{:.1}" font-size="10.5" font-weight="600" text-anchor="middle" fill="#ffffff">{name}</text>"##,
            x - half,
            y - 7.5,
            2.0 * half,
            y + 3.8
        ));
    }
}

const DASHES: &str = r#" stroke-dasharray="5 4""#;

/// `0-3, 6` for 0, 1, 2, 3, 6; only the number of chunks where that gets long.
fn ranges(chunks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &chunk in chunks {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == chunk => *end = chunk,
            _ => runs.push((chunk, chunk)),
        }
    }
    if runs.len() > 3 {
        return format!("{} chunks", chunks.len());
    }
    let names = runs.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}–{last}"),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// A colour as `#rrggbb`, which every program that reads SVG knows.
fn hsl(hue: f64, saturation: f64, lightness: f64) -> String {
    let reach = saturation * lightness.min(1.0 - lightness);
    let channel = |offset: f64| {
        let position = (offset + hue / 30.0) % 12.0;
        let part = (position - 3.0).min(9.0 - position).clamp(-1.0, 1.0);
        ((lightness - reach * part) * 255.0).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0.0), channel(8.0), channel(4.0))
}
