"use strict";
// Light, dark or the system's choice. Runs before the body is drawn, so that the page does not flash.
(function () {
  var names = ["system", "light", "dark"];
  var root = document.documentElement;
  function stored() {
    // Storage may be refused for local files; the choice then lasts for this page.
    try { return localStorage.getItem("dare-bench-theme"); } catch (refused) { return null; }
  }
  function apply(name) {
    if (name === "system") { root.removeAttribute("data-theme"); } else { root.setAttribute("data-theme", name); }
  }
  var current = names.indexOf(stored()) >= 0 ? stored() : "system";
  root.classList.add("js");
  apply(current);
  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll(".needs-js").forEach(function (node) { node.hidden = false; });
    var button = document.getElementById("theme");
    function label() { button.textContent = "Theme: " + current; }
    label();
    button.addEventListener("click", function () {
      current = names[(names.indexOf(current) + 1) % names.length];
      apply(current);
      label();
      try { localStorage.setItem("dare-bench-theme", current); } catch (refused) { button.title = "Kept for this page only"; }
    });
  });
})();
