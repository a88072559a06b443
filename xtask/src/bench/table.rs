//! Tables, for the terminal and for the page, from the same cells.

/// Columns with titles, and rows of as many cells. The first column is text, the others are figures.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// What the figures are.
    pub title: String,
    /// Titles of the columns.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<S: Into<String>>(title: impl Into<String>, columns: impl IntoIterator<Item = S>) -> Table {
        Table {
            title: title.into(),
            columns: columns.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "{cells:?}");
        self.rows.push(cells);
    }

    /// Aligned lines.
    pub fn text(&self) -> String {
        let lines: Vec<&Vec<String>> = std::iter::once(&self.columns).chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = format!("{}\n", self.title);
        for cells in lines {
            let mut line = String::new();
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                match column {
                    0 => line.push_str(&format!("  {cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The same in Markdown, the title as a line above it.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<&str> =
            (0..self.columns.len()).map(|column| if column == 0 { "---" } else { "---:" }).collect();
        let mut text = format!("**{}**\n\n{}|{}|\n", self.title, line(&self.columns), rule.join("|"));
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

/// A figure with about three digits that matter.
pub fn figure(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "-".to_string(),
        size if size >= 100.0 => grouped(value.round() as i64),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// How many times: `6.02x`.
pub fn times(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}x") } else { "-".to_string() }
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = if number < 0 { "-".to_string() } else { String::new() };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("CPU", ["work", "redis", "quipu"]);
        table.push(vec!["INCR, P=16".into(), "1.73".into(), "0.45".into()]);
        table.push(vec!["a|b".into(), "10.5".into(), "-".into()]);
        table
    }

    #[test]
    fn terminals_get_aligned_columns() {
        assert_eq!(
            table().text(),
            "CPU\n  work        redis  quipu\n  INCR, P=16   1.73   0.45\n  a|b          10.5      -\n"
        );
    }

    #[test]
    fn pages_get_markdown() {
        assert_eq!(
            table().markdown(),
            "**CPU**\n\n| work | redis | quipu |\n|---|---:|---:|\n| INCR, P=16 | 1.73 | 0.45 |\n| a\\|b | 10.5 | - |\n"
        );
    }

    #[test]
    fn figures_have_three_digits_that_matter() {
        for (value, expected) in [
            (0.1236, "0.124"),
            (1.236, "1.24"),
            (12.36, "12.4"),
            (1234.5, "1,235"),
            (1_234_567.0, "1,234,567"),
            (-123_456.0, "-123,456"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(figure(value), expected);
        }
        assert_eq!(times(6.019), "6.02x");
        assert_eq!(grouped(0), "0");
    }
}
