//! Prints the relative squared error of codecs, |x − decoded|² / |x|², in percent, on made-up
//! gradients: the figures of the crate's documentation.
//!
//! `cargo run --release -p gradwire-codec --example relative_error [codec…]`

use gradwire_codec::Codec;

/// Elements of a row; rows of a matrix differ in scale.
const ROW: usize = 1024;
const ROWS: usize = 512;

/// splitmix64, and what is drawn from it.
struct Source(u64);

impl Source {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller, 1958.
    fn gaussian(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    fn student(&mut self, freedom: usize) -> f64 {
        let chi: f64 = (0..freedom).map(|_| self.gaussian().powi(2)).sum();
        self.gaussian() / (chi / freedom as f64).sqrt()
    }
}

/// A matrix of one kind of values, each row times a lognormal factor.
fn matrix(mut element: impl FnMut(&mut Source) -> f64) -> Vec<f32> {
    let mut source = Source(7);
    let mut values = Vec::with_capacity(ROW * ROWS);
    for _ in 0..ROWS {
        let scale = 1e-4 * source.gaussian().exp();
        values.extend((0..ROW).map(|_| (scale * element(&mut source)) as f32));
    }
    values
}

fn relative_error(codec: Codec, values: &[f32]) -> f64 {
    let mut wire = vec![0; codec.encoded_bytes(values.len())];
    let mut error = vec![0.0; values.len()];
    codec.encode_with_error(values, 1, &mut wire, &mut error);
    let energy = |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    energy(&error) / energy(values)
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let names = if given.is_empty() { Codec::NAMES.map(str::to_owned).to_vec() } else { given };
    let kinds = [
        ("gaussian", matrix(Source::gaussian)),
        ("student-5", matrix(|source| source.student(5))),
        ("lognormal", matrix(|source| source.gaussian() * source.gaussian().exp())),
    ];
    println!(
        "{:40} {:>7} {:>12} {:>12} {:>12}",
        "codec", "bits", "gaussian", "student-5", "lognormal"
    );
    for name in names {
        let codec: Codec = match name.parse() {
            Ok(codec) => codec,
            Err(error) => return eprintln!("{error}"),
        };
        print!("{name:40} {:7.4}", codec.bits_per_element());
        for (_, values) in &kinds {
            print!(" {:11.7}%", 100.0 * relative_error(codec, values));
        }
        println!();
    }
}
