"use strict";
// Sorting within each model, column sets and a row filter for the leaderboard tables.
(function () {
  var units = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18 };
  // Numbers are read from what the cell shows first: "72.5", "▲ +12.0", "1.25 M"; a word or a dash is no number.
  function value(row, column) {
    var cell = row.cells[column];
    if (!cell || !cell.firstChild) { return null; }
    var text = cell.firstChild.textContent.trim();
    if (!/^[aet]$/.test(cell.className)) { return text.toLowerCase(); }
    var found = /^[▲▼~ ]*([+−]?)([0-9.]+) ?([kMGTPE]?)/.exec(text);
    return found ? (found[1] === "−" ? -1 : 1) * Number(found[2]) * units[found[3]] : null;
  }
  // Column numbers of the buttons: the second header row fills what the first leaves open.
  function columns(table) {
    var found = [], second = Array.prototype.slice.call(table.tHead.rows[1].cells), next = 0;
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (cell) {
      if (cell.rowSpan === 2) { found.push(cell); return; }
      for (var i = 0; i < cell.colSpan; i += 1) { found.push(second[next]); next += 1; }
    });
    return found;
  }
  function sort(table, heads, column, direction) {
    Array.prototype.forEach.call(table.tBodies, function (body) {
      var rows = Array.prototype.slice.call(body.rows, 1);
      rows.map(function (row, place) { return { row: row, key: value(row, column), place: place }; })
        .sort(function (a, b) {
          // Missing values come last in both directions.
          if (a.key === null || b.key === null) { return (a.key === null) - (b.key === null) || a.place - b.place; }
          if (a.key === b.key) { return a.place - b.place; }
          return (a.key < b.key ? -1 : 1) * direction;
        })
        .forEach(function (item) { body.appendChild(item.row); });
    });
    heads.forEach(function (head) { head.removeAttribute("aria-sort"); });
    heads[column].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  }
  function filter(table, words, count) {
    var shown = 0, all = 0;
    Array.prototype.forEach.call(table.tBodies, function (body) {
      var model = body.rows[0].textContent, here = 0;
      Array.prototype.slice.call(body.rows, 1).forEach(function (row) {
        var text = (model + " " + row.cells[0].textContent + " " + row.cells[1].textContent).toLowerCase();
        var keep = words.every(function (word) { return text.indexOf(word) >= 0; });
        row.hidden = !keep;
        all += 1;
        if (keep) { here += 1; }
      });
      body.hidden = here === 0;
      shown += here;
    });
    count.textContent = words.length === 0 ? "" :
      shown + " of " + all + " rows" + (shown === 0 ? ": no row holds “" + words.join(" ") + "”; clear the filter to see all" : "");
  }
  document.querySelectorAll("section.board").forEach(function (section) {
    var table = section.querySelector("table"), heads = columns(table), count = section.querySelector(".count");
    heads.forEach(function (head, column) {
      var button = head.querySelector("button.sort");
      if (!button) { return; }
      button.addEventListener("click", function () {
        var first = button.getAttribute("data-kind") === "text" ? 1 : -1;
        var now = head.getAttribute("aria-sort");
        sort(table, heads, column, now === null ? first : (now === "ascending" ? -1 : 1));
      });
    });
    section.querySelectorAll("[data-cols]").forEach(function (button) {
      button.addEventListener("click", function () {
        table.setAttribute("data-cols", button.getAttribute("data-cols"));
        section.querySelectorAll("[data-cols][aria-pressed]").forEach(function (other) {
          other.setAttribute("aria-pressed", String(other === button));
        });
        section.querySelectorAll("th[scope=colgroup].a").forEach(function (head) {
          head.colSpan = { all: 5, acc: 2, eff: 3, train: 1 }[button.getAttribute("data-cols")];
        });
      });
    });
    section.querySelector("input[type=search]").addEventListener("input", function (event) {
      filter(table, event.target.value.toLowerCase().split(/\s+/).filter(Boolean), count);
    });
  });
})();
