// Code that is wider than the page can be scrolled with the keyboard: the tab key reaches it, and arrow keys move the
// code. mdBook's own arrow keys turn pages, so a code block keeps them while it has the focus.
"use strict";

{
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
