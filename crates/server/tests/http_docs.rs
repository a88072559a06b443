//! The documentation page in a real browser: it shows every call, asks nobody but this server, and fits a phone.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod browser;
mod support;

use browser::Browser;
use serde_json::json;
use support::Server;

const RENDERED: &str = "document.getElementById('operations')?.getAttribute('aria-busy') === 'false'";

#[test]
fn the_page_shows_every_call_and_asks_nobody_else() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let document = server.request("GET", "/openapi.json", &[], "").json();
    let mut calls: Vec<String> = Vec::new();
    for methods in document["paths"].as_object().unwrap().values() {
        calls.extend(
            methods.as_object().unwrap().values().map(|call| call["operationId"].as_str().unwrap().into()),
        );
    }
    calls.sort();
    assert!(calls.len() >= 15, "{calls:?}");

    let mut browser = Browser::start();
    let origin = format!("http://{}", server.http);
    browser.open(&format!("{origin}/docs"), RENDERED);
    let shown = browser
        .evaluate("[...document.querySelectorAll('section.operation')].map(section => section.id).sort()");
    assert_eq!(shown, json!(calls));
    // Nothing that should be an element has become text.
    let text = browser.evaluate("document.body.innerText");
    let text = text.as_str().unwrap();
    for garbled in ["[object", "undefined", "NaN"] {
        assert!(!text.contains(garbled), "the page says {garbled}");
    }

    // A line for the shell follows what is typed, and the list follows the filter.
    let line = "document.querySelector('#incrementCounter .line code').textContent";
    let typed = "(() => { const input = document.getElementById('incrementCounter-key'); input.value = 'a/b c'; \
                 input.dispatchEvent(new Event('input')); })()";
    browser.evaluate(typed);
    let expected = format!("curl -X POST {origin}/api/v1/counters/a%2Fb%20c/increment ");
    assert!(browser.evaluate(line).as_str().unwrap().starts_with(&expected));
    let filter = "(() => { const input = document.getElementById('filter'); input.value = 'polic delete'; \
                  input.dispatchEvent(new Event('input')); })()";
    browser.evaluate(filter);
    let visible =
        "[...document.querySelectorAll('section.operation:not([hidden])')].map(section => section.id)";
    assert_eq!(browser.evaluate(visible), json!(["deletePolicy"]));

    let requests = browser.requests();
    assert!(requests.contains(&format!("{origin}/openapi.json")), "{requests:?}");
    let elsewhere: Vec<_> = requests
        .iter()
        .filter(|address| !address.starts_with(&format!("{origin}/")) && !address.starts_with("data:"))
        .filter(|address| *address != "about:blank")
        .collect();
    assert!(elsewhere.is_empty(), "the page asks {elsewhere:?}");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn the_page_fits_a_phone_and_is_named_for_those_who_listen() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut browser = Browser::start();
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": true});
    browser.call("Emulation.setDeviceMetricsOverride", phone);
    browser.open(&format!("http://{}/docs", server.http), RENDERED);
    browser.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })");
    let widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]";
    assert_eq!(browser.evaluate(widths), json!([360, 360]), "the page scrolls sideways");
    for (what, unnamed) in [
        (
            "a field without a label",
            "[...document.querySelectorAll('input, textarea')].filter(field => !field.labels.length)",
        ),
        (
            "a button without a name",
            "[...document.querySelectorAll('button')].filter(button => !button.ariaLabel)",
        ),
        (
            "an id that is there twice",
            "[...document.querySelectorAll('[id]')].filter(one => document.querySelectorAll('#' + CSS.escape(one.id)).length > 1)",
        ),
        (
            "a link that leads nowhere",
            "[...document.querySelectorAll('a[href^=\"#\"]')].filter(link => !document.querySelector(link.getAttribute('href')))",
        ),
    ] {
        assert_eq!(browser.evaluate(&format!("{unnamed}.length")), json!(0), "{what}");
    }
    // Text must stand out from what is behind it, in the light and in the dark (WCAG AA: 4.5).
    for scheme in ["light", "dark"] {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.call("Emulation.setEmulatedMedia", features);
        let weakest = browser.evaluate(CONTRAST);
        assert!(weakest["ratio"].as_f64().unwrap() >= 4.5, "{scheme}: {weakest}");
    }
}

/// The weakest contrast of any text with its background.
const CONTRAST: &str = r#"(() => {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => channels(color).slice(0, 3)
    .map((part) => part / 255).map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const background = (element) => {
    for (; element; element = element.parentElement) {
      const color = getComputedStyle(element).backgroundColor;
      const alpha = channels(color)[3];
      if (alpha === undefined || alpha > 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  let weakest = { ratio: 21 };
  for (const element of document.querySelectorAll("body *")) {
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const [text, behind] = [luminance(getComputedStyle(element).color), luminance(background(element))];
    const ratio = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
    if (ratio < weakest.ratio) weakest = { ratio, text: element.textContent.slice(0, 40), class: element.className };
  }
  return weakest;
})()"#;
