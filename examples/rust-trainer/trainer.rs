//! A language model trained by hand: embedding -> tanh layer -> next letter, every derivative written out.
//! Standard library only. It writes a frame and answers as a loss oracle, as docs/frame-format.md says.
//!
//! Shapes: B examples of CONTEXT letters each, V letters, D numbers a letter, H hidden units.

mod json;

use json::Json;
use std::io::{self, BufRead, Write};

const TEXT: &[u8] = b"the river runs from the hills to the sea and the sea gives its rain back to the hills ";
const V: usize = 27; // space and a to z
const D: usize = 6;
const H: usize = 16;
const CONTEXT: usize = 3;
const B: usize = 32;
const LEARNING_RATE: f64 = 0.5;
const USAGE: &str = "usage: trainer train | frame FILE | oracle | signs SEED NAME COUNT  [--steps N] [--broken FAULT]";
const BROKEN: [&str; 5] = ["missing-factor", "dropped-bias", "stale", "overwritten", "unwritten-rows"];

// ---- the model --------------------------------------------------------------------------------------------

#[derive(Clone)]
struct Tensor {
    name: &'static str,
    shape: Vec<usize>,
    values: Vec<f64>,   // row-major
    gradient: Option<Vec<f64>>, // None: the backward pass wrote nothing at all
}

// Forward order: the arbiter names the wrong tensor that is nearest the loss, which is the last one.
const EMBEDDING: usize = 0; // V x D
const HIDDEN: usize = 1; // CONTEXT * D x H
const HIDDEN_BIAS: usize = 2;
const OUTPUT: usize = 3; // H x V
const OUTPUT_BIAS: usize = 4;

fn new_model() -> Vec<Tensor> {
    let mut random = Random { state: 7 };
    let mut tensor = |name, shape: &[usize], scale: f64| Tensor {
        name,
        shape: shape.to_vec(),
        values: (0..shape.iter().product()).map(|_| scale * random.uniform()).collect(),
        gradient: None,
    };
    vec![
        tensor("embedding", &[V, D], 0.5),
        tensor("hidden.weight", &[CONTEXT * D, H], 0.3),
        tensor("hidden.bias", &[H], 0.1),
        tensor("output.weight", &[H, V], 0.3),
        tensor("output.bias", &[V], 0.1),
    ]
}

struct Example {
    context: [usize; CONTEXT],
    next: usize,
}

fn batch(step: usize) -> Vec<Example> {
    let letter = |i: usize| match TEXT[i % TEXT.len()] {
        b' ' => 0,
        byte => (byte - b'a') as usize + 1,
    };
    (step * B..(step + 1) * B)
        .map(|i| Example { context: [letter(i), letter(i + 1), letter(i + 2)], next: letter(i + CONTEXT) })
        .collect()
}

/// What the forward pass of one example leaves for its backward pass.
struct Forward {
    input: Vec<f64>,         // CONTEXT * D, the embeddings side by side
    hidden: Vec<f64>,        // H
    probabilities: Vec<f64>, // V
    loss: f64,
}

fn forward(model: &[Tensor], example: &Example) -> Forward {
    let row = |&letter: &usize| &model[EMBEDDING].values[letter * D..(letter + 1) * D];
    let input: Vec<f64> = example.context.iter().flat_map(row).copied().collect();
    let sums = affine(&input, &model[HIDDEN].values, &model[HIDDEN_BIAS].values);
    let hidden: Vec<f64> = sums.iter().map(|sum| sum.tanh()).collect();
    let logits = affine(&hidden, &model[OUTPUT].values, &model[OUTPUT_BIAS].values);
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = exponentials.iter().sum();
    let probabilities = exponentials.iter().map(|one| one / total).collect();
    let loss = total.ln() + largest - logits[example.next];
    Forward { input, hidden, probabilities, loss }
}

/// bias + input (n) times weight (n x m)
fn affine(input: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut output = bias.to_vec();
    for (i, x) in input.iter().enumerate() {
        for (j, y) in output.iter_mut().enumerate() {
            *y += x * weight[i * bias.len() + j];
        }
    }
    output
}

fn mean_loss(model: &[Tensor], examples: &[Example]) -> f64 {
    examples.iter().map(|example| forward(model, example).loss).sum::<f64>() / examples.len() as f64
}

/// Write the gradient of the mean loss into `model` and return that loss. `broken` names a fault, or nothing.
fn backward(model: &mut [Tensor], examples: &[Example], broken: &str) -> f64 {
    let mut gradients: Vec<Vec<f64>> = model.iter().map(|tensor| vec![0.0; tensor.values.len()]).collect();
    if let ("stale", Some(left_over)) = (broken, &model[EMBEDDING].gradient) {
        gradients[EMBEDDING] = left_over.clone(); // what is missing here is a zero_grad()
    }
    let mut loss = 0.0;
    for example in examples {
        let pass = forward(model, example);
        loss += pass.loss / examples.len() as f64;
        let mut d_logits = pass.probabilities.clone();
        d_logits[example.next] -= 1.0;
        d_logits.iter_mut().for_each(|one| *one /= examples.len() as f64);
        let mut d_sums = vec![0.0; H];
        for i in 0..H {
            let weights = &model[OUTPUT].values[i * V..(i + 1) * V];
            d_sums[i] = weights.iter().zip(&d_logits).map(|(weight, d)| weight * d).sum();
            if broken != "missing-factor" {
                d_sums[i] *= 1.0 - pass.hidden[i] * pass.hidden[i]; // the derivative of tanh
            }
        }
        let written = if broken == "unwritten-rows" { &pass.hidden[..H - 4] } else { &pass.hidden[..] };
        add_outer(&mut gradients[OUTPUT], written, &d_logits);
        add_outer(&mut gradients[OUTPUT_BIAS], &[1.0], &d_logits);
        add_outer(&mut gradients[HIDDEN], &pass.input, &d_sums);
        add_outer(&mut gradients[HIDDEN_BIAS], &[1.0], &d_sums);
        for (place, &letter) in example.context.iter().enumerate() {
            let row = &mut gradients[EMBEDDING][letter * D..(letter + 1) * D];
            for (i, d) in row.iter_mut().enumerate() {
                let weights = &model[HIDDEN].values[(place * D + i) * H..(place * D + i + 1) * H];
                let share: f64 = weights.iter().zip(&d_sums).map(|(weight, d)| weight * d).sum();
                // A letter occurs more than once: its parts are summed.
                *d = if broken == "overwritten" { share } else { *d + share };
            }
        }
    }
    for (tensor, gradient) in model.iter_mut().zip(gradients) {
        tensor.gradient = (broken != "dropped-bias" || tensor.name != "output.bias").then_some(gradient);
    }
    loss
}

fn add_outer(to: &mut [f64], rows: &[f64], columns: &[f64]) {
    for (i, row) in rows.iter().enumerate() {
        for (j, column) in columns.iter().enumerate() {
            to[i * columns.len() + j] += row * column;
        }
    }
}

fn trained(steps: usize, broken: &str) -> Vec<Tensor> {
    let mut model = new_model();
    for step in 0..steps {
        let loss = backward(&mut model, &batch(step), broken);
        if step % 50 == 0 {
            eprintln!("step {step:4}  loss {loss:.4}");
        }
        for tensor in &mut model {
            let values = tensor.values.iter_mut();
            values.zip(tensor.gradient.iter().flatten()).for_each(|(value, d)| *value -= LEARNING_RATE * d);
        }
    }
    model
}

// ---- directions: docs/frame-format.md ---------------------------------------------------------------------

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9E3779B97F4A7C15;

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ byte as u32, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB88320 } else { crc >> 1 })
    })
}

fn sign(seed: u64, name: &str, i: u64) -> f64 {
    let key = mix(seed) ^ crc32(name.as_bytes()) as u64;
    if mix(key.wrapping_add((i + 1).wrapping_mul(GOLDEN))) < 1 << 63 { 1.0 } else { -1.0 }
}

/// The numbers that the weights begin with.
struct Random {
    state: u64,
}

impl Random {
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(GOLDEN);
        (mix(self.state) >> 11) as f64 / (1u64 << 52) as f64 - 1.0 // from -1 to 1
    }
}

// ---- the frame --------------------------------------------------------------------------------------------

fn write_frame(path: &str, model: &[Tensor], loss: f64, step: usize) -> io::Result<()> {
    let entry = |one: &Tensor| format!(r#"{{"name": "{}", "shape": {:?}, "trainable": true}}"#, one.name, one.shape);
    let tensors = model.iter().map(entry).collect::<Vec<_>>().join(", ");
    let about = format!(r#"{{"version": 1, "loss": {loss:?}, "step": {step}, "tensors": [{tensors}]}}"#);
    let mut header = format!(r#"{{"__metadata__": {{"mothertongue_frame": "{}"}}"#, about.replace('"', "\\\""));
    let mut data: Vec<u8> = Vec::new();
    for tensor in model {
        for (kind, values) in [("param", Some(&tensor.values)), ("grad", tensor.gradient.as_ref())] {
            let Some(values) = values else { continue }; // nothing is not the same as zeros
            let begin = data.len();
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let (name, shape, end) = (tensor.name, &tensor.shape, data.len());
            header += &format!(
                r#", "{kind}/{name}": {{"dtype": "F64", "shape": {shape:?}, "data_offsets": [{begin}, {end}]}}"#
            );
        }
    }
    header += "}";
    header += &" ".repeat((8 - header.len() % 8) % 8); // so that the numbers are aligned
    let mut file = std::fs::File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(&data)
}

// ---- the oracle -------------------------------------------------------------------------------------------

fn answer(model: &[Tensor], examples: &[Example], line: &str) -> Result<String, String> {
    let question = Json::read(line).ok_or("the question is no JSON")?;
    let seed = question.get("seed").and_then(Json::number).ok_or("no seed")?.parse().map_err(|_| "a bad seed")?;
    let Some(Json::Object(steps)) = question.get("steps") else { return Err("no steps".to_string()) };
    let only = question.get("only");
    let mut moved = model.to_vec(); // a copy, so that nothing has to be put back
    for (name, step) in steps {
        let tensor = moved.iter_mut().find(|one| one.name == name).ok_or(format!("no tensor named {name}"))?;
        let step: f64 = step.number().and_then(|text| text.parse().ok()).ok_or("a step that is no number")?;
        let all = vec![(0, tensor.values.len())];
        let runs = only.and_then(|only| only.get(name)).map_or(Some(all), Json::pairs).ok_or("a bad run")?;
        for (first, end) in runs {
            let part = tensor.values.get_mut(first..end).ok_or("a run beyond the tensor")?;
            for (i, value) in part.iter_mut().enumerate() {
                *value += step * sign(seed, name, (first + i) as u64);
            }
        }
    }
    let loss = mean_loss(&moved, examples);
    Ok(format!(r#"{{"loss": {loss:?}{}}}"#, if only.is_some() { r#", "only": true"# } else { "" }))
}

// ---- the program ------------------------------------------------------------------------------------------

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(message) = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        eprintln!("trainer: {message}");
        std::process::exit(2);
    }
}

fn run(arguments: &[&str]) -> Result<(), String> {
    let option = |name| arguments.iter().position(|one| *one == name).and_then(|at| arguments.get(at + 1));
    let steps: usize = option("--steps").unwrap_or(&"0").parse().map_err(|_| "--steps needs a number")?;
    let broken = option("--broken").copied().unwrap_or("");
    if !broken.is_empty() && !BROKEN.contains(&broken) {
        return Err(format!("no fault named {broken}; there are {}", BROKEN.join(", ")));
    }
    match arguments {
        ["train", ..] => {
            let model = trained(steps, broken);
            println!("loss {:.4} after {steps} steps", mean_loss(&model, &batch(steps)));
        }
        ["frame", path, ..] => {
            let mut model = trained(steps, broken);
            backward(&mut model, &batch(steps + 1), broken); // another batch first: what it leaves behind shows
            let loss = backward(&mut model, &batch(steps), broken);
            write_frame(path, &model, loss, steps).map_err(|error| format!("{path}: {error}"))?;
        }
        ["oracle", ..] => {
            let (model, examples) = (trained(steps, broken), batch(steps));
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                let error = |message| format!(r#"{{"error": "{message}"}}"#);
                println!("{}", answer(&model, &examples, &line).unwrap_or_else(error));
            }
        }
        ["signs", seed, name, count] => {
            let seed = seed.parse().map_err(|_| "SEED is a whole number from 0")?;
            let count = count.parse().map_err(|_| "COUNT is a whole number from 0")?;
            let signs = (0..count).map(|i| if sign(seed, name, i) > 0.0 { '+' } else { '-' });
            println!("{}", signs.collect::<String>());
        }
        _ => return Err(USAGE.to_string()),
    }
    Ok(())
}
