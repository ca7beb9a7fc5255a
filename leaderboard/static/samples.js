"use strict";
// Outcome filter and text search over the answers of a cell page.
(function () {
  var section = document.getElementById("samples");
  if (!section) { return; }
  var items = Array.prototype.slice.call(section.querySelectorAll("details.sample"));
  var texts = items.map(function (item) { return item.textContent.toLowerCase(); });
  var count = section.querySelector(".count"), input = section.querySelector("input[type=search]"), verdict = "";
  function apply() {
    var words = input.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
    items.forEach(function (item, i) {
      var keep = (!verdict || item.getAttribute("data-verdict") === verdict) &&
        words.every(function (word) { return texts[i].indexOf(word) >= 0; });
      item.hidden = !keep;
      if (keep) { shown += 1; }
    });
    count.textContent = shown + " of " + items.length + " shown";
  }
  section.querySelectorAll("[data-show]").forEach(function (button) {
    button.addEventListener("click", function () {
      verdict = button.getAttribute("data-show");
      section.querySelectorAll("[data-show]").forEach(function (other) {
        other.setAttribute("aria-pressed", String(other === button));
      });
      apply();
    });
  });
  input.addEventListener("input", apply);
  apply();
})();
