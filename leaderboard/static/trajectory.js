"use strict";
// Replays one denoised answer. The page already holds the final text and the whole order map; this hides what a
// forward has not committed yet.
(function () {
  var viewer = document.getElementById("viewer");
  if (!viewer) { return; }
  var total = Number(viewer.getAttribute("data-forwards"));
  var trace = viewer.querySelector(".trace"), slider = viewer.querySelector("input[type=range]");
  var speed = viewer.querySelector("select"), status = viewer.querySelector("output");
  var play = viewer.querySelector("[data-do=play]"), now = viewer.querySelector("path.now");
  var kinds = trace.getAttribute("data-kinds").split("|");
  var tokens = Array.prototype.map.call(trace.querySelectorAll("span"), function (node, i) {
    var step = Number(node.getAttribute("data-s")), confidence = node.getAttribute("data-c");
    node.title = "position " + (i + 1) + (step < 0 ? ", never committed" : ", forward " + (step + 1)) +
      (confidence === null ? "" : ", confidence " + Number(confidence).toFixed(2));
    return { node: node, step: step, piece: node.textContent };
  });
  var cells = Array.prototype.map.call(viewer.querySelectorAll("rect.at"), function (node) {
    return { node: node, step: Number(node.getAttribute("data-s")) };
  });
  var at = total, timer = null;

  // A masked position keeps roughly the width of its piece, so that the text does not jump; line breaks stay hidden.
  function mask(piece) { return "░".repeat(Math.max(1, Math.min(12, Array.from(piece.replace(/\n/g, "")).length))); }

  function draw() {
    var done = 0, fresh = 0;
    tokens.forEach(function (token) {
      var is_out = token.step >= 0 && token.step < at, is_new = is_out && token.step === at - 1;
      token.node.textContent = is_out ? token.piece : mask(token.piece);
      token.node.classList.toggle("masked", !is_out);
      token.node.classList.toggle("fresh", is_new && at < total + 1 && at > 0);
      done += is_out ? 1 : 0;
      fresh += is_new ? 1 : 0;
    });
    cells.forEach(function (cell) {
      cell.node.classList.toggle("later", cell.step >= at);
      cell.node.classList.toggle("fresh", cell.step === at - 1);
    });
    if (now) {
      var y = Number(now.getAttribute("data-top")) + Number(now.getAttribute("data-row")) * at;
      now.setAttribute("d", now.getAttribute("d").replace(/ [\d.]+h/, " " + y.toFixed(1) + "h"));
    }
    slider.value = String(at);
    status.textContent = at + "/" + total + " forwards · " + done + " tokens · " +
      (at > 0 ? (done / at).toFixed(2) : "0") + " tokens/forward" +
      (at > 0 && kinds[at - 1] ? " · " + kinds[at - 1] + ", " + fresh + " new" : "");
    slider.setAttribute("aria-valuetext", at + " of " + total + " forwards, " + done + " tokens");
  }
  function go(to) { at = Math.max(0, Math.min(total, to)); draw(); }
  function stop() {
    if (timer !== null) { clearTimeout(timer); timer = null; }
    play.textContent = "▶ Play";
  }
  function tick() {
    if (at >= total) { stop(); return; }
    go(at + 1);
    timer = setTimeout(tick, 1000 / Number(speed.value));
  }
  function toggle() {
    if (timer !== null) { stop(); return; }
    if (at >= total) { go(0); }
    play.textContent = "❚❚ Pause";
    timer = setTimeout(tick, 1000 / Number(speed.value));
  }
  function step(by) { stop(); go(at + by); }
  function faster(by) { speed.selectedIndex = Math.max(0, Math.min(speed.options.length - 1, speed.selectedIndex + by)); }

  play.addEventListener("click", toggle);
  viewer.querySelector("[data-do=back]").addEventListener("click", function () { step(-1); });
  viewer.querySelector("[data-do=next]").addEventListener("click", function () { step(1); });
  slider.addEventListener("input", function () { stop(); go(Number(slider.value)); });
  viewer.addEventListener("keydown", function (event) {
    var on = event.target, is_control = on.tagName === "BUTTON" || on.tagName === "SELECT" || on.tagName === "A";
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    var action = {
      " ": toggle,
      "ArrowLeft": function () { step(-1); },
      "ArrowRight": function () { step(1); },
      "Home": function () { stop(); go(0); },
      "End": function () { stop(); go(total); },
      "[": function () { faster(-1); },
      "]": function () { faster(1); }
    }[event.key];
    // Keys that mean something to the focused control stay with it.
    if (!action || (is_control && event.key === " ") || on.tagName === "SELECT") { return; }
    event.preventDefault();
    action();
  });
  // Nothing starts by itself; a reader who prefers less motion gets the slowest speed.
  if (window.matchMedia && window.matchMedia("(prefers-reduced-motion: reduce)").matches) { speed.selectedIndex = 0; }
  draw();
})();
