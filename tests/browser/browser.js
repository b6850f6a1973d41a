// A browser, and what all figures are tested with.
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { after, before } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "./site.js";

const quiet = ["--disable-gpu", "--disable-quic", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--no-first-run"];

// The page of a figure, and a browser for it: `open` shows it, `site` says where it is.
export function visit(figure) {
  let browser;
  const site = {};

  before(async () => {
    Object.assign(site, await serve(figure));
    browser = await chromium.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: quiet,
      // Chromium has no sandbox for root, as whom containers run.
      chromiumSandbox: process.getuid?.() !== 0,
    });
  });

  after(async () => {
    await browser?.close();
    site.close?.();
  });

  // Opens the page, hands it to `look`, and finds out what the page complained about.
  async function open(options, look, url = site.url) {
    const context = await browser.newContext({ viewport: { width: 1100, height: 900 }, ...options });
    try {
      const page = await context.newPage();
      page.setDefaultTimeout(5000);
      const complaints = [];
      page.on("console", (message) => {
        if (["error", "warning"].includes(message.type())) complaints.push(message.text());
      });
      page.on("pageerror", (error) => complaints.push(String(error)));
      page.on("requestfailed", (request) => complaints.push(`failed: ${request.url()}`));
      page.on("request", (request) => {
        const { protocol, origin } = new URL(request.url());
        const here = protocol === "data:" || protocol === "file:" || origin === site.origin;
        if (!here) complaints.push(`another host: ${request.url()}`);
      });
      await page.goto(url);
      await look(page, complaints);
      assert.deepEqual(complaints, []);
    } finally {
      await context.close();
    }
  }

  const damaged = (sound, broken, pictureOnly) => open({}, async (page, complaints) => {
    await page.route(site.url, async (route) => {
      const response = await route.fetch();
      const body = await response.text();
      assert.ok(body.includes(sound), sound);
      await route.fulfill({ response, body: body.replace(sound, broken) });
    });
    await page.reload();
    await pictureOnly(page);
    // Loading the page again ends whatever was still on its way for the first time.
    const errors = complaints.splice(0).filter((complaint) => !complaint.startsWith("failed:"));
    assert.equal(errors.length, 1, errors.join("\n"));
    assert.match(errors[0], /SyntaxError/);
  });

  // Nothing is animated when this button is pressed, whatever the reader wants of motion.
  async function still(name) {
    for (const reducedMotion of ["no-preference", "reduce"]) {
      await open({ reducedMotion }, async (page) => {
        await page.locator(figure).getByRole("button", { name, exact: true }).click();
        const moving = await page.locator(figure)
          .evaluate((figure) => figure.getAnimations({ subtree: true }).length);
        assert.equal(moving, 0, reducedMotion);
      });
    }
  }

  return { site, open, damaged, still };
}

// The picture, and nothing that would need a script.
export const pictureOnly = (figure, caption) => async (page) => {
  const svg = page.locator(`${figure} figure svg`);
  assert.ok(await svg.isVisible());
  const { width, height } = await svg.boundingBox();
  assert.ok(width > 250 && height > 150, `${width} × ${height}`);
  assert.match(await page.locator(`${figure} figcaption`).innerText(), caption);
  assert.equal(await page.locator(`${figure} button:visible`).count(), 0);
};

// What the tab key reaches, from a menu on: tag, first word of the name, and whether it is seen to have the
// focus.
export async function tabStops(page, menu, count) {
  await menu.focus();
  const reached = [];
  for (let i = 0; i < count; i++) {
    reached.push(await page.evaluate(() => {
      const { tagName, labels, textContent, ariaLabel } = document.activeElement;
      const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
      const name = ariaLabel ?? labels?.[0]?.firstChild.textContent ?? textContent;
      return [tagName, name.trim().split(" ")[0], outlineStyle !== "none" && outlineWidth !== "0px"];
    }));
    await page.keyboard.press("Tab");
  }
  return reached;
}

export const paint = (page, theme) =>
  page.evaluate((theme) => {
    document.documentElement.classList.remove("light", "rust", "coal", "navy", "ayu");
    document.documentElement.classList.add(theme);
  }, theme);

// How far an element's colour is from the page's ground, or from the `fill` of another element, as WCAG 2
// defines it: 1 to 21.
export const contrast = (element, property, ground) =>
  element.evaluate((element, [property, ground]) => {
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const luminance = (colour) => {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const below = ground && element.closest("svg").querySelector(ground);
    const root = document.documentElement;
    if (!below) root.style.color = "var(--bg)";
    const other = luminance(below ? getComputedStyle(below).fill : getComputedStyle(root).color);
    root.style.color = "";
    const [dark, light] = [luminance(getComputedStyle(element)[property]), other].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  }, [property, ground]);

// The texts of a figure's drawings that are smaller on the screen than a reader can be expected to read.
export const smallTexts = (figure) =>
  figure.evaluate((figure) => [...figure.querySelectorAll("svg text")].filter((text) => text.checkVisibility()
    && parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a < 11).map((text) => text.textContent));

export async function screenshot(figure, page, name) {
  const folder = new URL("./screenshots/", import.meta.url).pathname;
  await mkdir(folder, { recursive: true });
  await page.locator(figure).screenshot({ path: `${folder}${name}.png` });
}
