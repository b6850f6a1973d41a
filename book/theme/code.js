// Code blocks: long commands, and code that is wider than the page.
"use strict";

{
  // A browser would break a line within `--flag`, after its hyphens. Words in place of a shell's colours prevent that.
  for (const command of document.querySelectorAll("pre > code.language-console .bash")) {
    command.replaceChildren(...command.textContent.split(/(\s+)/).map((word) => {
      if (!/\S/.test(word)) return word;
      const span = document.createElement("span");
      span.textContent = word;
      return span;
    }));
  }

  // The tab key reaches code that is wider than the page, and arrow keys move the code. mdBook's own arrow keys turn
  // pages, so a block keeps them while it has the focus.
  const blocks = [...document.querySelectorAll("pre > code")];
  const reach = () => {
    for (const block of blocks) {
      // A block in a folded answer has no width yet.
      if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
      else block.removeAttribute("tabindex");
    }
  };
  for (const block of blocks) {
    block.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") event.stopPropagation();
    });
  }
  addEventListener("load", reach);
  addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
}
