// Code blocks in Chromium: commands and outputs, and code that is wider than the page.
import assert from "node:assert/strict";
import { test } from "node:test";
import { paint, visit } from "./browser.js";

// Any page has code.
const { site, open } = visit("step-lists");
const phone = { viewport: { width: 400, height: 800 } };
const wide = (page) => page.locator("pre > code.language-rust[tabindex]").first();

// How far a block's colour at an edge is from its ground, 0 to 255, where it has no letters.
async function shadow(page, edge) {
  const image = (await wide(page).screenshot()).toString("base64");
  return page.evaluate(async ([image, edge]) => {
    const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${image}`)).blob());
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d", { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    const green = (x) => context.getImageData(Math.round(x), bitmap.height - 5, 1, 1).data[1];
    return Math.abs(green(edge === "left" ? 2 : bitmap.width - 3) - green(bitmap.width / 2));
  }, [image, edge]);
}

test("all commands of a block have one weight and one colour, and outputs have another weight", async () => {
  await open({}, async (page) => {
    const blocks = await page.locator("pre > code.language-console").evaluateAll((blocks) => blocks.map((block) => ({
      output: getComputedStyle(block).fontWeight,
      words: [...block.querySelectorAll(".bash, .bash *")].map((words) => {
        const { fontWeight, color } = getComputedStyle(words);
        return `${fontWeight} ${color}`;
      }),
    })));
    assert.ok(blocks.some(({ words }) => words.length > 1), "no block with commands");
    for (const { output, words } of blocks.filter(({ words }) => words.length)) {
      assert.equal(new Set(words).size, 1, words.join());
      assert.ok(parseInt(words[0]) > parseInt(output), `${words[0]} ${output}`);
    }
  });
});

test("a long command goes on in the next line, and no word of a command is broken", async () => {
  await open({ viewport: { width: 300, height: 800 } }, async (page) => {
    const lines = await page.locator("pre > code.language-console .bash").evaluateAll((commands) =>
      commands.map((command) => ({
        lines: command.getClientRects().length,
        broken: [...command.children].filter((word) => word.getClientRects().length > 1).map((word) => word.textContent),
      })));
    assert.ok(lines.some(({ lines }) => lines > 1), "every command has one line");
    assert.deepEqual(lines.flatMap(({ broken }) => broken), []);
  });
});

test("code that is cut off has a shadow at this edge, and none at its ends", async () => {
  await open(phone, async (page) => {
    for (const theme of ["light", "navy"]) {
      await paint(page, theme);
      await wide(page).evaluate((block) => { block.scrollLeft = 0; });
      assert.equal(await shadow(page, "left"), 0, theme);
      assert.ok(await shadow(page, "right") > 30, theme);
      await wide(page).evaluate((block) => { block.scrollLeft = block.scrollWidth; });
      assert.ok(await shadow(page, "left") > 30, theme);
      assert.equal(await shadow(page, "right"), 0, theme);
    }
  });
});

test("the keyboard scrolls wide code, and turns no page meanwhile", async () => {
  await open(phone, async (page) => {
    await page.evaluate(() => document.addEventListener("keydown", () => { window.turned = true; }));
    await wide(page).focus();
    await page.keyboard.press("ArrowRight");
    await page.waitForFunction(() => document.activeElement.scrollLeft > 0);
    assert.equal(await page.evaluate(() => window.turned), undefined);
    assert.equal(page.url(), site.url);
    const narrow = await page.locator("pre > code").evaluateAll((blocks) =>
      blocks.filter((block) => block.tabIndex === 0 && block.scrollWidth <= block.clientWidth).length);
    assert.equal(narrow, 0, "a block without more to see is a stop of the tab key");
  });
});
