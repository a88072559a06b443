//! Bars as SVG: one file without anything from elsewhere, text that can be selected, legible on light and on dark.

use std::fmt::Write as _;

/// Bars in groups.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// How to read it.
    pub subtitle: String,
    /// Written behind every value, such as `x` or ` ms`.
    pub unit: &'static str,
    /// Names of the bars in each group.
    pub series: Vec<String>,
    /// The place of the one that matters most; it is drawn strongest.
    pub accent: usize,
    /// From top to bottom.
    pub groups: Vec<Group>,
    /// A line through all groups, such as 1 for ratios.
    pub reference: Option<f64>,
}

/// Bars that belong together.
#[derive(Debug, Clone)]
pub struct Group {
    /// Written to their left.
    pub label: String,
    /// One for each series; what was not measured has no bar.
    pub bars: Vec<Option<f64>>,
    /// Marked, if there is one.
    pub goal: Option<f64>,
}

const WIDTH: f64 = 880.0;
const MARGIN: f64 = 20.0;
/// Where bars begin: labels stand to the left.
const BARS_LEFT: f64 = 300.0;
/// Where the longest bar ends: its value stands to the right.
const BARS_RIGHT: f64 = 780.0;
const BAR_HEIGHT: f64 = 14.0;
const BAR_STEP: f64 = 17.0;
const GROUP_GAP: f64 = 12.0;
const HEADER_HEIGHT: f64 = 84.0;
const FOOTER_HEIGHT: f64 = 16.0;

/// Colours of series on light and on dark ground, the one that matters most first. They stand out from their ground.
const COLORS: [(&str, &str); 4] =
    [("#0969da", "#58a6ff"), ("#8c959f", "#6e7681"), ("#bf8700", "#d29922"), ("#8250df", "#bc8cff")];

impl Chart {
    /// The picture.
    pub fn render(&self) -> String {
        let group_height = |group: &Group| group.bars.len().max(1) as f64 * BAR_STEP + GROUP_GAP;
        let height = HEADER_HEIGHT + self.groups.iter().map(group_height).sum::<f64>() + FOOTER_HEIGHT;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" aria-labelledby=\"title description\">\n\
             <title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>\n{}\
             <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
            escape(&self.title),
            escape(&self.subtitle),
            self.style(),
        );
        self.draw_header(&mut svg);
        let bottom = height - FOOTER_HEIGHT;
        if let Some(reference) = self.reference {
            let x = rounded(BARS_LEFT + self.length_of(reference));
            let top = HEADER_HEIGHT - 4.0;
            let _ = writeln!(svg, "<path class=\"reference\" d=\"M{x} {top}V{bottom}\"/>");
        }
        let mut top = HEADER_HEIGHT;
        for group in &self.groups {
            self.draw_group(&mut svg, group, top);
            top += group_height(group);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn style(&self) -> String {
        let mut light = String::new();
        let mut dark = String::new();
        for index in 0..self.series.len() {
            let place = (index + self.series.len() - self.accent) % self.series.len();
            let (on_light, on_dark) = COLORS[place % COLORS.len()];
            let _ = write!(light, ".s{index}{{fill:{on_light}}}");
            let _ = write!(dark, ".s{index}{{fill:{on_dark}}}");
        }
        format!(
            "<style>\ntext{{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}}\n\
             .title{{font-size:16px;font-weight:600}}.quiet{{fill:#59636e;font-size:12px}}.value{{font-size:12px}}\
             .right{{text-anchor:end}}.ground{{fill:#fff}}\n\
             .goal{{stroke:#cf222e;stroke-width:2;fill:none}}\
             .reference{{stroke:#59636e;stroke-dasharray:3 3;fill:none}}{light}\n\
             @media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.quiet{{fill:#9198a1}}.ground{{fill:#0d1117}}\
             .goal{{stroke:#ff7b72}}.reference{{stroke:#9198a1}}{dark}}}\n</style>\n"
        )
    }

    fn draw_header(&self, svg: &mut String) {
        let _ = writeln!(svg, "<text class=\"title\" x=\"{MARGIN}\" y=\"28\">{}</text>", escape(&self.title));
        let _ =
            writeln!(svg, "<text class=\"quiet\" x=\"{MARGIN}\" y=\"47\">{}</text>", escape(&self.subtitle));
        let mut x = MARGIN;
        for (index, name) in self.series.iter().enumerate() {
            let _ = writeln!(svg, "<rect class=\"s{index}\" x=\"{x}\" y=\"58\" width=\"12\" height=\"12\"/>");
            let _ =
                writeln!(svg, "<text class=\"value\" x=\"{}\" y=\"68\">{}</text>", x + 17.0, escape(name));
            // Widths of letters are not known here; this is ample for the font sizes above.
            x += 17.0 + name.chars().count() as f64 * 8.0 + 18.0;
        }
        if self.groups.iter().any(|group| group.goal.is_some()) {
            let _ = writeln!(svg, "<path class=\"goal\" d=\"M{} 57v14\"/>", x + 2.0);
            let _ = writeln!(svg, "<text class=\"value\" x=\"{}\" y=\"68\">goal</text>", x + 9.0);
        }
    }

    fn draw_group(&self, svg: &mut String, group: &Group, top: f64) {
        let bars_height = group.bars.len().max(1) as f64 * BAR_STEP;
        let _ = writeln!(
            svg,
            "<text class=\"right\" x=\"{}\" y=\"{}\">{}</text>",
            BARS_LEFT - 10.0,
            top + bars_height / 2.0 + 3.0,
            escape(&group.label)
        );
        for (index, value) in group.bars.iter().enumerate() {
            let Some(value) = value.filter(|value| value.is_finite()) else { continue };
            let (y, length) = (top + index as f64 * BAR_STEP, rounded(self.length_of(value)));
            let _ = writeln!(
                svg,
                "<rect class=\"s{index}\" x=\"{BARS_LEFT}\" y=\"{y}\" width=\"{length}\" height=\"{BAR_HEIGHT}\"/>"
            );
            // Behind the goal's mark, if that would stand in the text.
            let goal_x = group.goal.map_or(0.0, |goal| self.length_of(goal));
            let in_the_way = (length - 4.0..length + 50.0).contains(&goal_x);
            let x = rounded(BARS_LEFT + if in_the_way { goal_x } else { length } + 6.0);
            let _ = writeln!(
                svg,
                "<text class=\"value\" x=\"{x}\" y=\"{}\">{}{}</text>",
                y + BAR_HEIGHT - 3.0,
                super::table::figure(value),
                self.unit
            );
        }
        if let Some(goal) = group.goal {
            let x = rounded(BARS_LEFT + self.length_of(goal));
            let (from, to) = (top - 2.0, top + bars_height - 1.0);
            let _ = writeln!(
                svg,
                "<path class=\"goal\" d=\"M{x} {from}V{to}\"><title>goal {}{}</title></path>",
                super::table::figure(goal),
                self.unit
            );
        }
    }

    fn length_of(&self, value: f64) -> f64 {
        let shown =
            |group: &Group| group.bars.iter().flatten().copied().chain(group.goal).fold(0.0, f64::max);
        let largest = self.groups.iter().map(shown).fold(self.reference.unwrap_or(0.0), f64::max);
        if largest > 0.0 { (value / largest).clamp(0.0, 1.0) * (BARS_RIGHT - BARS_LEFT) } else { 0.0 }
    }
}

fn rounded(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart {
            title: "Cheaper <by> \"times\" & more".into(),
            subtitle: "higher is better".into(),
            unit: "x",
            series: vec!["redis".into(), "quipu".into()],
            accent: 1,
            groups: vec![
                Group { label: "INCR".into(), bars: vec![Some(2.0), Some(4.0)], goal: Some(3.0) },
                Group { label: "GET".into(), bars: vec![None, Some(f64::NAN)], goal: None },
            ],
            reference: Some(1.0),
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = chart().render();
        let full = BARS_RIGHT - BARS_LEFT;
        for (class, length) in [("s0", full / 2.0), ("s1", full)] {
            let bar = format!("<rect class=\"{class}\" x=\"300\" y=\"");
            assert!(
                svg.lines()
                    .any(|line| line.starts_with(&bar) && line.contains(&format!("width=\"{length}\""))),
                "{svg}"
            );
        }
        // The legend has two, the first group two, the second none.
        assert_eq!(svg.matches("<rect class=\"s").count(), 4);
        assert!(svg.contains(">4.00x</text>") && svg.contains("goal 3.00x"), "{svg}");
    }

    #[test]
    fn it_is_well_formed_and_needs_nothing_from_elsewhere() {
        let svg = chart().render();
        assert!(svg.contains("Cheaper &lt;by&gt; &quot;times&quot; &amp; more"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        let elsewhere = svg.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "url(", "@import", "href", "<image", "<script"] {
            assert!(!elsewhere.contains(word), "{word}");
        }
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn the_strongest_colour_goes_to_what_matters_most() {
        for (accent, strongest) in [(0, ".s0{fill:#0969da}"), (1, ".s1{fill:#0969da}")] {
            assert!(Chart { accent, ..chart() }.render().contains(strongest));
        }
    }

    #[test]
    fn nothing_measured_is_a_picture_too() {
        let empty = Chart { groups: Vec::new(), reference: None, ..chart() };
        assert!(empty.render().ends_with("</svg>\n"));
    }
}
