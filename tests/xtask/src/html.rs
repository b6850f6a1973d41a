//! Text for pages.

/// Text that can stand in SVG or HTML, between tags and in quotes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
