// Shows the value that is nearest to the pointer. Arrow keys go through the values of a focused panel.
const tip = document.createElement("div");
tip.id = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
document.body.append(tip);
const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
dot.setAttribute("class", "dot"); dot.setAttribute("r", 5);
function hide() { tip.hidden = true; dot.remove(); }
function show(svg, [x, y, text]) {
  const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
  dot.setAttribute("cx", x); dot.setAttribute("cy", y); svg.append(dot);
  tip.textContent = text; tip.hidden = false;
  const left = Math.min(at.x + 12, document.documentElement.clientWidth - tip.offsetWidth - 4);
  const below = at.y + 14 + tip.offsetHeight < window.innerHeight;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (below ? at.y + 14 : at.y - 14 - tip.offsetHeight) + "px";
}
for (const svg of document.querySelectorAll("svg[data-values]")) {
  const values = JSON.parse(svg.dataset.values);
  let current = -1;
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  function follow(event) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = ([x, y]) => Math.hypot(x - at.x, y - at.y);
    let best = -1;
    values.forEach((value, i) => { if (far(value) < (best < 0 ? 30 : far(values[best]))) best = i; });
    current = best;
    if (best < 0) hide(); else show(svg, values[best]);
  }
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !values.length) return;
    event.preventDefault();
    current = (current + step + values.length) % values.length;
    show(svg, values[current]);
  });
}
addEventListener("scroll", hide, { passive: true });
