// Every page of the built book on a desktop and on a telephone: nothing is cut, and no page is wider than its window.
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { dirname } from "node:path";
import { test } from "node:test";
import { chromium } from "playwright-core";

const [first] = (process.env.PAGES ?? "").split("\n").filter(Boolean);
const pages = first ? readdirSync(dirname(first)).filter((it) => /^[a-z0-9-]+\.html$/.test(it) && !/^(print|toc)\./.test(it)) : [];

test("no listing is cut on a desktop, and no page scrolls sideways", { skip: !first }, async () => {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--disable-gpu"],
    chromiumSandbox: process.getuid?.() !== 0,
  });
  const wrong = [];
  try {
    for (const width of [1400, 390]) {
      const page = await browser.newPage({ viewport: { width, height: 900 } });
      for (const name of pages) {
        await page.goto(`file://${dirname(first)}/${name}`);
        const found = await page.evaluate(() => {
          const code = [...document.querySelectorAll("main pre code")];
          for (const fold of document.querySelectorAll("details")) fold.open = true;
          const cut = code.filter((it) => it.scrollWidth > it.clientWidth + 1).map((it) => it.textContent.slice(0, 60));
          return { cut, wide: document.documentElement.scrollWidth - innerWidth };
        });
        if (width === 1400) wrong.push(...found.cut.map((it) => `${name}: ${it}`));
        if (found.wide > 0) wrong.push(`${name}: ${found.wide} pixels wider than ${width}`);
      }
      await page.close();
    }
  } finally {
    await browser.close();
  }
  assert.deepEqual(wrong, []);
});
