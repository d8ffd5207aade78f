// What moves sideways, because it is wider than its place, can be reached and moved by keyboard.
(() => {
  const boxes = "pre, .table-wrapper, .output, mjx-container[display='true']";

  function mark() {
    for (const box of document.querySelectorAll(boxes)) {
      const moves =
        box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
      if (moves && !box.hasAttribute("tabindex")) {
        box.tabIndex = 0;
      } else if (!moves && box.getAttribute("tabindex") === "0") {
        box.removeAttribute("tabindex");
      }
    }
  }

  window.addEventListener("load", mark);
  window.addEventListener("resize", mark);
  document.addEventListener("toggle", mark, true); // a solution that opens
})();
