// <all-reduce-stepper> in Chromium: what it shows is what the collectives sent.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { test } from "node:test";
import { contrast, paint, pictureOnly as picture, screenshot, smallTexts, tabStops, visit } from "./browser.js";
import { data } from "./site.js";

const trace = data("all-reduce-stepper");
const { site, open, damaged } = visit("all-reduce-stepper");
const pictureOnly = picture("all-reduce-stepper", /ring on four ranks/);

const stepper = (page) => page.locator("all-reduce-stepper");
const button = (page, name) => stepper(page).getByRole("button", { name, exact: true });

async function choose(page, run) {
  await stepper(page).getByLabel("Algorithm").selectOption(run.algorithm);
  await stepper(page).getByLabel("Devices").selectOption(String(run.ranks));
}

// What a reader sees. Numbers of bytes stand before the word.
const shown = (page) =>
  stepper(page).evaluate((element) => {
    const text = (selector) => element.querySelector(selector).textContent;
    const bytes = (selector) => Number(/^([\d,]+) bytes/.exec(text(selector))[1].replaceAll(",", ""));
    const cells = [...element.querySelectorAll(".stage .cell")];
    return {
      step: text(".step"),
      all: bytes(".all"),
      busiest: bytes(".busiest"),
      now: text(".now"),
      cells: cells.map((cell) => cell.textContent),
      whole: cells.filter((cell) => cell.classList.contains("whole")).length,
      stripes: element.querySelectorAll(".stage [class^=of-]").length,
      arrows: element.querySelectorAll(".stage .tip").length,
    };
  });

// What the trace says should be seen.
function expected(run, step) {
  const sent = Array(run.ranks).fill(0);
  const held = sent.map((_, rank) => sent.map(() => [rank]));
  for (const { from, to, chunks, sum_of, bytes } of run.steps.slice(0, step).flat()) {
    sent[from] += bytes;
    for (const chunk of chunks) held[to][chunk] = [...new Set([...held[to][chunk], ...sum_of])].sort();
  }
  // How many ranks' numbers are in what was added up in this step.
  const added = (run.steps[step - 1] ?? []).filter(({ to, sum_of }) => !sum_of.includes(to));
  const sizes = added.flatMap(({ to, chunks }) => chunks.map((chunk) => held[to][chunk].length));
  const partial = held.flat().filter((ranks) => ranks.length < run.ranks);
  const names = (ranks) => ranks.join(", ").replace(/, (\d+)$/, " and $1");
  return {
    sums: [...new Set(sizes)].sort().join(" or "),
    step: `${step} of ${run.steps.length}`,
    all: sent.reduce((a, b) => a + b),
    busiest: Math.max(...sent),
    cells: held.flatMap((chunks, rank) => chunks.map((ranks, chunk) =>
      `rank ${rank}, chunk ${chunk}: numbers of rank ${names(ranks)}`)),
    whole: run.ranks ** 2 - partial.length,
    stripes: partial.flat().length,
    arrows: step === 0 ? 0 : run.steps[step - 1].length,
  };
}

async function check(page, run, step) {
  const { now, ...seen } = await shown(page);
  const { sums, ...wanted } = expected(run, step);
  assert.deepEqual(seen, wanted, `${run.algorithm} on ${run.ranks}, step ${step}`);
  assert.equal(/now the sum of (.+) ranks/.exec(now)?.[1] ?? "", sums, now);
  return now;
}

async function checkEnd(page, run) {
  const seen = await shown(page);
  const what = `${run.algorithm} on ${run.ranks}`;
  assert.equal(seen.whole, run.ranks ** 2, `${what}: every rank holds the whole sum`);
  // Counted by the links between the threads.
  assert.equal(seen.all, run.sent.reduce((a, b) => a + b), what);
  assert.equal(seen.busiest, Math.max(...run.sent), what);
  assert.match(seen.now, /All ranks hold the whole sum\.$/);
}

test("the trace has three algorithms on two to eight ranks", () => {
  const runs = trace.runs.map(({ algorithm, ranks }) => `${algorithm} ${ranks}`);
  const all = ["naive", "tree", "ring"].flatMap((name) => [2, 3, 4, 5, 6, 7, 8].map((n) => `${name} ${n}`));
  assert.deepEqual(runs, all);
});

test("buttons step through every run, forwards and back", async () => {
  await open({}, async (page) => {
    for (const run of trace.runs) {
      await choose(page, run);
      const said = [await check(page, run, 0)];
      for (let step = 1; step <= run.steps.length; step++) {
        await button(page, "Step").click();
        said.push(await check(page, run, step));
      }
      assert.ok(said.every((text) => text.length > 20), said.join("\n"));
      await checkEnd(page, run);
      // Nothing comes after the end or before the start, and the buttons say so.
      await button(page, "Step").and(page.locator("[aria-disabled=true]")).click({ force: true });
      await check(page, run, run.steps.length);
      await button(page, "Back").click();
      await check(page, run, run.steps.length - 1);
      await button(page, "First").click();
      await check(page, run, 0);
      await button(page, "Back").and(page.locator("[aria-disabled=true]")).click({ force: true });
      await check(page, run, 0);
    }
  });
});

test("keys step through every run, and the book turns no page", async () => {
  await open({}, async (page) => {
    for (const run of trace.runs) {
      await choose(page, run);
      await stepper(page).locator(".stage").focus();
      for (let step = 1; step <= run.steps.length; step++) {
        await page.keyboard.press("ArrowRight");
        await check(page, run, step);
      }
      await checkEnd(page, run);
      await page.keyboard.press("ArrowRight");
      await check(page, run, run.steps.length);
      await page.keyboard.press("Home");
      await check(page, run, 0);
      await page.keyboard.press("ArrowLeft");
      await check(page, run, 0);
      await page.keyboard.press("End");
      await page.keyboard.press("ArrowLeft");
      await check(page, run, run.steps.length - 1);
    }
    assert.equal(page.url(), site.url);
  });
});

test("every control is reached with the tab key, has a name, and shows that it has the focus", async () => {
  await open({}, async (page) => {
    const reached = await tabStops(page, stepper(page).getByLabel("Algorithm"), 7);
    assert.deepEqual(reached, [
      ["SELECT", "Algorithm", true], ["SELECT", "Devices", true],
      ["BUTTON", "First", true], ["BUTTON", "Back", true], ["BUTTON", "Step", true],
      ["BUTTON", "Play", true], ["DIV", "The", true],
    ]);
    assert.equal(await stepper(page).locator(".now").getAttribute("aria-live"), "polite");
    assert.equal(await stepper(page).locator("[id]").count(), 0, "print.html joins pages: no ids");
  });
});

test("it plays to the end, and pauses", async () => {
  await open({}, async (page) => {
    const run = trace.runs.find(({ algorithm, ranks }) => algorithm === "tree" && ranks === 2);
    await choose(page, run);
    await stepper(page).locator(".stage").focus();
    await page.keyboard.press("Space");
    await check(page, run, 1);
    await button(page, "Pause").click();
    await page.waitForTimeout(1700);
    await check(page, run, 1);
    await button(page, "Play").focus();
    await page.keyboard.press("Space");
    await check(page, run, 2);
    await button(page, "Play").click();
    await check(page, run, 0);
    await button(page, "Play").waitFor();
    await checkEnd(page, run);
  });
});

test("on a telephone nothing has to be scrolled sideways", async () => {
  await open({ viewport: { width: 320, height: 640 } }, async (page) => {
    for (const run of trace.runs) {
      await choose(page, run);
      await button(page, "Step").click();
      const outside = await page.evaluate(() => {
        const wide = (element) => {
          const { left, right } = element.getBoundingClientRect();
          return left < 0 || right > 320;
        };
        const parts = [...document.querySelectorAll("all-reduce-stepper .interactive *")];
        const scrolls = document.documentElement.scrollWidth > 320;
        return [...(scrolls ? ["the page"] : []), ...parts.filter(wide).map((part) => part.outerHTML)];
      });
      assert.deepEqual(outside, [], `${run.algorithm} on ${run.ranks}`);
    }
  });
});

test("without scripts there is the picture", async () => {
  for (const width of [320, 1100]) {
    await open({ javaScriptEnabled: false, viewport: { width, height: 900 } }, pictureOnly);
  }
});

test("on paper there is the picture", async () => {
  await open({}, async (page) => {
    assert.ok(!(await stepper(page).locator("figure").isVisible()));
    await page.emulateMedia({ media: "print" });
    await pictureOnly(page);
  });
});

test("a page opened from a disk works as well", async () => {
  await open({}, async (page) => {
    await button(page, "Step").click();
    const run = trace.runs.find(({ algorithm, ranks }) => algorithm === "ring" && ranks === 4);
    await check(page, run, 1);
  }, pathToFileURL(site.file).href);
});

test("where data is damaged the picture stays, and the console says so", async () => {
  await damaged('"runs":[', '"runs":', pictureOnly);
});

test("nothing moves for those who asked for that", async () => {
  for (const [reducedMotion, moves] of [["no-preference", true], ["reduce", false]]) {
    await open({ reducedMotion }, async (page) => {
      await button(page, "Step").click();
      const name = await stepper(page).locator(".arrow").first()
        .evaluate((arrow) => getComputedStyle(arrow).animationName);
      assert.equal(name !== "none", moves, reducedMotion);
    });
  }
});

test("light and dark, telephone and desk: everything stands out from the ground", async () => {
  const run = trace.runs.find(({ algorithm, ranks }) => algorithm === "ring" && ranks === 8);
  for (const [name, width] of [["telephone", 320], ["desk", 1100]]) {
    await open({ viewport: { width, height: 900 } }, async (page) => {
      await choose(page, run);
      for (let step = 0; step < 3; step++) await button(page, "Step").click();
      for (const theme of ["light", "navy"]) {
        await paint(page, theme);
        const first = (part) => stepper(page).locator(part).first();
        for (const rank of Array(8).keys()) {
          assert.ok(await contrast(first(`.stage .of-${rank}`), "fill") >= 3, `${theme}: rank ${rank}`);
        }
        for (const [part, property, least] of [
          [".stage text", "fill", 4.5], [".stage .arrow", "stroke", 3], ["button", "color", 4.5],
          [".now", "color", 4.5],
        ]) {
          const found = await contrast(first(part), property);
          assert.ok(found >= least, `${theme}: ${part} ${found.toFixed(2)}`);
        }
        assert.deepEqual(await smallTexts(stepper(page)), [], `${theme}, ${name}`);
        await page.waitForTimeout(700);
        await screenshot("all-reduce-stepper", page, `stepper-${name}-${theme}`);
      }
    });
  }
});
