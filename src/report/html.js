"use strict";
// Everything that came from outside is set as text, never as markup.
const size = n => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (n >= 1023.95 && at < units.length - 1) { n /= 1024; at++; }
  return (at ? n.toFixed(1) : Math.round(n)) + " " + units[at];
};

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    head.setAttribute("role", "button");
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down < 0 ? "descending" : "ascending");
      const key = row => row.cells[at].dataset.k;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x !== undefined && y !== undefined) return down * (x - y);
        if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
        return -down * a.cells[at].textContent.localeCompare(b.cells[at].textContent);
      });
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}

for (const search of document.querySelectorAll(".search")) {
  const rows = [...search.parentElement.querySelectorAll("tbody tr")];
  const [field, told] = search.children;
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      count += !row.hidden;
    }
    told.textContent = wanted ? count + " of " + rows.length : "";
  });
}

for (const pre of document.querySelectorAll("pre")) {
  const text = pre.textContent, button = document.createElement("button");
  button.textContent = "copy";
  button.addEventListener("click", () => {
    navigator.clipboard?.writeText(text).then(() => { button.textContent = "copied"; }, () => {});
  });
  pre.append(button);
}

for (const picture of document.querySelectorAll("svg[data-chart]")) {
  const figure = picture.closest("figure"), data = JSON.parse(figure.querySelector("script").textContent);
  const tip = document.createElement("div"), cross = picture.querySelector(".cross");
  tip.className = "tip";
  tip.hidden = true;
  figure.append(tip);
  const hide = () => { tip.hidden = true; if (cross) cross.style.visibility = "hidden"; };
  const show = (event, title, lines) => {
    const frame = figure.getBoundingClientRect();
    tip.replaceChildren(...[title, ...lines].map((line, at) => {
      const part = document.createElement(at ? "div" : "b");
      part.textContent = line;
      return part;
    }));
    tip.hidden = false;
    const x = event.clientX - frame.left, right = x + 16 + tip.offsetWidth > frame.width;
    tip.style.left = Math.max(0, right ? x - 16 - tip.offsetWidth : x + 16) + "px";
    tip.style.top = event.clientY - frame.top + 12 + "px";
  };
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("pointermove", event => {
    const frame = picture.getBoundingClientRect(), scale = data.width / frame.width;
    const x = (event.clientX - frame.left) * scale, y = (event.clientY - frame.top) * scale;
    const part = (x - data.left) / (data.width - data.left - data.right);
    if (!(part >= 0 && part < 1)) return hide();
    const columns = (data.rates || data.read)[0].length, column = Math.floor(part * columns);
    const shown = data.stretches.reduce((sum, [from, until]) => sum + until - from, 0);
    const at = n => {
      let rest = shown * n / columns;
      const inside = data.stretches.find(([from, until]) => rest <= until - from || (rest -= until - from, false));
      return (inside ? inside[0] + rest : data.stretches.at(-1)[1]).toFixed(2);
    };
    const title = at(column) + " s to " + at(column + 1) + " s";
    if (data.rates) {
      cross.setAttribute("transform", "translate(" + x + ")");
      cross.style.visibility = "visible";
      return show(event, title, data.names.map((name, n) => size(data.rates[n][column]) + "/s " + name));
    }
    const row = Math.floor((y - data.top) / data.high);
    if (!(row >= 0 && row < data.names.length)) return hide();
    const moved = [[data.read, "read"], [data.written, "written"]].map(([of, name]) => size(of[row][column] || 0) + " " + name);
    show(event, data.names[row] + ", " + title, moved);
  });
}
