// The pages under test, on a port of this machine: of a book that was built (PAGES names their files, a line
// each), or else a bare page around the same markup.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { mkdtemp, readFile, cp, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, extname, join, normalize, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const book = join(here, "../../book");

const FIGURES = {
  "all-reduce-stepper": { chapter: "ch02-all-reduce.md", file: "all-reduce-steps.json" },
  "step-lists": { chapter: "ch06a-better-lists.md", file: "pipeline-schedules.json" },
};

// What a figure shows.
export const data = (name) => JSON.parse(readFileSync(join(book, "data", FIGURES[name].file), "utf8"));

// The figure as the chapter has it, with the text of files in place of the lines that name them.
async function figure(name) {
  const chapter = join(book, "src", FIGURES[name].chapter);
  const text = await readFile(chapter, "utf8");
  const found = new RegExp(`^<${name} .*?^</${name}>`, "ms").exec(text);
  const parts = found[0].split(/\{\{#include (.+?)\}\}/);
  const files = parts.map((part, i) => (i % 2 ? readFile(join(book, "src", part), "utf8") : part));
  return (await Promise.all(files)).map((text, i) => (i % 2 ? text.trimEnd() : text)).join("");
}

// The page's file, in a folder that has all it needs.
async function page(name) {
  const pages = (process.env.PAGES ?? "").split("\n").filter(Boolean);
  const built = pages.find((file) => readFileSync(file, "utf8").includes(`<${name} `));
  if (built) return resolve(built);
  const folder = await mkdtemp(join(tmpdir(), "figure-"));
  await cp(join(book, "theme"), join(folder, "theme"), { recursive: true });
  const markup = await figure(name);
  const bare = await readFile(join(here, "page.html"), "utf8");
  const html = bare.replaceAll("{{name}}", name).replace("{{figure}}", () => markup);
  await writeFile(join(folder, "index.html"), html);
  return join(folder, "index.html");
}

const types = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css",
  ".js": "text/javascript",
  ".svg": "image/svg+xml",
  ".woff2": "font/woff2",
  ".json": "application/json",
};

// Serves the page of a figure; `origin` is the only host that it may ask for anything.
export async function serve(name) {
  const file = await page(name);
  const server = createServer(async (request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://x").pathname));
    try {
      const content = await readFile(join(dirname(file), path));
      response.writeHead(200, { "content-type": types[extname(path)] ?? "application/octet-stream" });
      response.end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const origin = `http://127.0.0.1:${server.address().port}`;
  return { file, origin, url: `${origin}/${basename(file)}`, close: () => server.close() };
}
