//! Transformers, dense and mixtures of experts: what they are made of and how large that is.

use std::path::Path;

use gradwire_topology::FileFault;
use serde::Deserialize;
use serde_json::Value;

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// For people.
    pub name: String,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values (as many as heads without grouped queries).
    pub kv_heads: u64,
    /// Width of one head.
    pub head_width: u64,
    /// Inner width of the feed-forward network.
    pub feed_forward: u64,
    /// Whether the feed-forward network has a gate (SwiGLU): three matrices instead of two.
    pub gated: bool,
    /// Entries of the vocabulary.
    pub vocabulary: u64,
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Whether the output layer shares the input embedding's weights.
    pub tied: bool,
    /// Experts, if it is a mixture.
    pub experts: Option<Experts>,
}

/// The experts of a mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are in a layer.
    pub count: u64,
    /// How many each token goes to.
    pub active: u64,
    /// Experts that every token goes to, besides.
    pub shared: u64,
    /// Inner width of one expert.
    pub width: u64,
}

impl Transformer {
    /// A GPT-3-like model: two matrices of width 4h, every head with its keys and values.
    pub fn gpt(
        name: &str,
        layers: u32,
        hidden: u64,
        heads: u64,
        vocabulary: u64,
        sequence: u64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            layers,
            hidden,
            heads,
            kv_heads: heads,
            head_width: hidden / heads,
            feed_forward: 4 * hidden,
            gated: false,
            vocabulary,
            sequence,
            tied: true,
            experts: None,
        }
    }

    fn llama(
        name: &str,
        (layers, hidden, heads, kv_heads): (u32, u64, u64, u64),
        feed_forward: u64,
        vocabulary: u64,
        sequence: u64,
    ) -> Self {
        Self {
            kv_heads,
            feed_forward,
            gated: true,
            tied: false,
            ..Self::gpt(name, layers, hidden, heads, vocabulary, sequence)
        }
    }

    /// A model that is known by name.
    pub fn named(name: &str) -> Option<Self> {
        known().into_iter().find(|model| model.name.eq_ignore_ascii_case(name))
    }

    /// The names that [`Transformer::named`] knows.
    pub fn names() -> Vec<String> {
        known().into_iter().map(|model| model.name).collect()
    }

    /// Parameters of the attention of one layer.
    pub fn attention_parameters(&self) -> f64 {
        let queries = (self.heads * self.head_width) as f64;
        let keys = (self.kv_heads * self.head_width) as f64;
        self.hidden as f64 * (2.0 * queries + 2.0 * keys)
    }

    /// Parameters of one feed-forward network (of one expert) of inner width `width`.
    fn network_parameters(&self, width: u64) -> f64 {
        let matrices = if self.gated { 3.0 } else { 2.0 };
        matrices * self.hidden as f64 * width as f64
    }

    /// Parameters of a layer that every token uses, and those of its experts.
    pub fn layer_parameters(&self) -> (f64, f64) {
        let norms = 4.0 * self.hidden as f64;
        let attention = self.attention_parameters() + norms;
        match self.experts {
            None => (attention + self.network_parameters(self.feed_forward), 0.0),
            Some(experts) => {
                let router = (self.hidden * experts.count) as f64;
                let one = self.network_parameters(experts.width);
                (attention + router + experts.shared as f64 * one, experts.count as f64 * one)
            }
        }
    }

    /// Parameters of one embedding.
    pub fn embedding_parameters(&self) -> f64 {
        (self.vocabulary * self.hidden) as f64
    }

    /// All parameters.
    pub fn parameters(&self) -> f64 {
        let (dense, experts) = self.layer_parameters();
        let embeddings = if self.tied { 1.0 } else { 2.0 } * self.embedding_parameters();
        f64::from(self.layers) * (dense + experts) + embeddings
    }

    /// Parameters that one token uses.
    pub fn active_parameters(&self) -> f64 {
        let (dense, experts) = self.layer_parameters();
        let used = self.experts.map_or(0.0, |it| it.active as f64 / it.count as f64 * experts);
        let embeddings = if self.tied { 1.0 } else { 2.0 } * self.embedding_parameters();
        f64::from(self.layers) * (dense + used) + embeddings
    }

    /// Operations that the model itself asks for in one step over `batch` sequences: forward and
    /// twice that backward, attention counted in full as Megatron-LM does (equation 3 of
    /// arXiv:2104.04473 without the recomputation).
    pub fn step_operations(&self, batch: f64) -> f64 {
        let tokens = batch * self.sequence as f64;
        let (dense, experts) = self.layer_parameters();
        let used = self.experts.map_or(0.0, |it| it.active as f64 / it.count as f64 * experts);
        let norms = 4.0 * self.hidden as f64;
        let scores = 4.0 * self.sequence as f64 * (self.heads * self.head_width) as f64;
        let layer = 2.0 * (dense + used - norms) + scores;
        3.0 * tokens * (f64::from(self.layers) * layer + 2.0 * self.embedding_parameters())
    }

    /// Reads a model file: TOML with the fields of [`Transformer`], or a Hugging Face
    /// `config.json`.
    ///
    /// # Errors
    /// When it can't be read or lacks something.
    pub fn read(path: &Path) -> Result<Self, FileFault> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| FileFault::whole(path, error.to_string()))?;
        Self::parse(path, &text)
    }

    /// Reads the text of a model file; the path tells its kind and is named in errors.
    ///
    /// # Errors
    /// When it lacks something or can't be used.
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileFault> {
        let model = if path.extension().is_some_and(|it| it == "json") {
            from_config(path, text)?
        } else {
            from_toml(path, text)?
        };
        model.checked().map_err(|error| FileFault::whole(path, error))
    }

    fn checked(self) -> Result<Self, String> {
        let sizes = [
            ("layers", u64::from(self.layers)),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_width", self.head_width),
            ("feed_forward", self.feed_forward),
            ("vocabulary", self.vocabulary),
            ("sequence", self.sequence),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{name} is 0, must be at least 1"));
        }
        if let Some((name, size)) = sizes.iter().find(|(_, size)| *size > 1 << 32) {
            return Err(format!("{name} is {size}, that is no transformer"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "{} heads can't share {} heads of keys and values evenly",
                self.heads, self.kv_heads
            ));
        }
        match self.experts {
            Some(it) if it.active == 0 || it.active > it.count || it.width == 0 => Err(format!(
                "{} of {} experts of width {} active, must be at least one and at most all",
                it.active, it.count, it.width
            )),
            _ => Ok(self),
        }
    }
}

fn known() -> Vec<Transformer> {
    let gpt =
        |name, layers, hidden, heads| Transformer::gpt(name, layers, hidden, heads, 51200, 2048);
    let llama = Transformer::llama;
    let mixture = |base: Transformer, count, active, shared, width| Transformer {
        experts: Some(Experts { count, active, shared, width }),
        ..base
    };
    vec![
        gpt("gpt3-125m", 12, 768, 12),
        gpt("gpt3-350m", 24, 1024, 16),
        gpt("gpt3-760m", 24, 1536, 16),
        gpt("gpt3-1.3b", 24, 2048, 16),
        gpt("gpt3-2.7b", 32, 2560, 32),
        gpt("gpt3-6.7b", 32, 4096, 32),
        gpt("gpt3-13b", 40, 5120, 40),
        gpt("gpt3-175b", 96, 12288, 96),
        gpt("megatron-530b", 105, 20480, 128),
        gpt("megatron-1t", 128, 25600, 160),
        Transformer::gpt("gpt2-124m", 12, 768, 12, 50304, 1024),
        Transformer::gpt("gpt2-1.5b", 48, 1600, 25, 50304, 1024),
        llama("llama2-7b", (32, 4096, 32, 32), 11008, 32000, 4096),
        llama("llama2-13b", (40, 5120, 40, 40), 13824, 32000, 4096),
        llama("llama2-70b", (80, 8192, 64, 8), 28672, 32000, 4096),
        llama("llama3-8b", (32, 4096, 32, 8), 14336, 128_256, 8192),
        llama("llama3-70b", (80, 8192, 64, 8), 28672, 128_256, 8192),
        llama("llama3-405b", (126, 16384, 128, 8), 53248, 128_256, 8192),
        mixture(llama("mixtral-8x7b", (32, 4096, 32, 8), 14336, 32000, 4096), 8, 2, 0, 14336),
        mixture(llama("mixtral-8x22b", (56, 6144, 48, 8), 16384, 32000, 4096), 8, 2, 0, 16384),
        mixture(llama("qwen3-30b-a3b", (48, 2048, 32, 4), 6144, 151_936, 4096), 128, 8, 0, 768),
    ]
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelFile {
    name: Option<String>,
    layers: u32,
    hidden: u64,
    heads: u64,
    kv_heads: Option<u64>,
    head_width: Option<u64>,
    feed_forward: Option<u64>,
    #[serde(default)]
    gated: bool,
    vocabulary: u64,
    sequence: u64,
    #[serde(default)]
    tied: bool,
    experts: Option<ExpertsFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpertsFile {
    count: u64,
    active: u64,
    #[serde(default)]
    shared: u64,
    width: Option<u64>,
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.display().to_string())
}

fn from_toml(path: &Path, text: &str) -> Result<Transformer, FileFault> {
    let file: ModelFile =
        toml::from_str(text).map_err(|error| FileFault::toml(path, text, &error))?;
    let feed_forward = file.feed_forward.unwrap_or(4 * file.hidden);
    Ok(Transformer {
        name: file.name.unwrap_or_else(|| stem(path)),
        layers: file.layers,
        hidden: file.hidden,
        heads: file.heads,
        kv_heads: file.kv_heads.unwrap_or(file.heads),
        head_width: file.head_width.unwrap_or(file.hidden / file.heads.max(1)),
        feed_forward,
        gated: file.gated,
        vocabulary: file.vocabulary,
        sequence: file.sequence,
        tied: file.tied,
        experts: file.experts.map(|it| Experts {
            count: it.count,
            active: it.active,
            shared: it.shared,
            width: it.width.unwrap_or(feed_forward),
        }),
    })
}

fn from_config(path: &Path, text: &str) -> Result<Transformer, FileFault> {
    let config: Value = serde_json::from_str(text)
        .map_err(|error| FileFault::whole(path, format!("line {}: {error}", error.line())))?;
    let number = |names: &[&str]| names.iter().find_map(|name| config.get(name)?.as_u64());
    let wanted = |names: &[&str]| {
        number(names).ok_or_else(|| {
            FileFault::whole(path, format!("there is no number `{}`", names.join("` or `")))
        })
    };
    let hidden = wanted(&["hidden_size", "n_embd", "d_model"])?;
    let heads = wanted(&["num_attention_heads", "n_head", "n_heads"])?;
    let layers = wanted(&["num_hidden_layers", "n_layer", "n_layers"])?;
    let feed_forward = number(&["intermediate_size", "n_inner", "ffn_dim"]).unwrap_or(4 * hidden);
    let activation = ["hidden_act", "activation_function"];
    let activation =
        activation.iter().find_map(|name| config.get(name)?.as_str()).unwrap_or("gelu");
    let experts =
        number(&["num_local_experts", "num_experts", "n_routed_experts"]).map(|count| Experts {
            count,
            active: number(&["num_experts_per_tok"]).unwrap_or(2),
            shared: number(&["n_shared_experts"]).unwrap_or(0),
            width: number(&["moe_intermediate_size"]).unwrap_or(feed_forward),
        });
    Ok(Transformer {
        name: config
            .get("_name_or_path")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .map_or_else(|| stem(path), str::to_owned),
        layers: u32::try_from(layers).unwrap_or(u32::MAX),
        hidden,
        heads,
        kv_heads: number(&["num_key_value_heads"]).unwrap_or(heads),
        head_width: number(&["head_dim"]).unwrap_or(hidden / heads.max(1)),
        feed_forward,
        gated: matches!(activation, "silu" | "swish" | "swiglu"),
        vocabulary: wanted(&["vocab_size"])?,
        sequence: number(&["max_position_embeddings", "n_positions", "n_ctx"])
            .unwrap_or(2048)
            .min(8192),
        tied: config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false),
        experts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn billions(name: &str) -> f64 {
        Transformer::named(name).expect(name).parameters() / 1e9
    }

    #[test]
    fn models_are_as_large_as_their_names_say() {
        for (name, expected) in [
            ("gpt3-175b", 174.6),
            ("gpt3-1.3b", 1.31),
            ("llama3-8b", 8.03),
            ("llama3-70b", 70.6),
            ("llama3-405b", 405.9),
            ("mixtral-8x7b", 46.7),
            ("megatron-530b", 529.6),
        ] {
            let found = billions(name);
            assert!((found / expected - 1.0).abs() < 0.01, "{name}: {found}");
        }
        let active = Transformer::named("mixtral-8x7b").expect("known").active_parameters() / 1e9;
        assert!((active - 12.9).abs() < 0.2, "{active}");
    }

    #[test]
    fn operations_are_those_of_the_published_formula() {
        let model = Transformer::named("gpt3-175b").expect("known");
        let (b, s, l, h, v) = (1536.0, 2048.0, 96.0, 12288.0, 51200.0);
        let published = 72.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (12.0 * l * h));
        assert!((model.step_operations(1536.0) / published - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_config_of_hugging_face_is_read() {
        let text = r#"{"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
            "hidden_act": "silu", "max_position_embeddings": 8192, "tie_word_embeddings": false}"#;
        let model = from_config(Path::new("config.json"), text).expect("complete");
        let named = Transformer::named("llama3-8b").expect("known");
        assert_eq!(model.parameters(), named.parameters());
        let fault = from_config(Path::new("c.json"), "{}").expect_err("empty");
        assert!(fault.to_string().contains("hidden_size"), "{fault}");
    }

    #[test]
    fn a_model_file_that_makes_no_sense_says_why() {
        let file = "layers = 2\nhidden = 8\nheads = 0\nvocabulary = 10\nsequence = 4\n";
        let model = from_toml(Path::new("m.toml"), file).expect("it reads");
        assert!(model.checked().expect_err("no heads").contains("heads is 0"));
        let fault = from_toml(Path::new("m.toml"), "layers = 2\nwidth = 3\n").expect_err("unknown");
        assert_eq!(fault.line(), Some(2));
    }
}
