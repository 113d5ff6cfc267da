// A chart is drawn when it can be seen: one in a closed section has no width yet. Vega's interpreter instead of generated
// code ("ast") lets the page forbid eval.
// Vega warns of each dataset that is empty, which is no news for a reader: errors only.
const LOG_ERRORS = 1;
const TOOLTIP = { disableDefaultStyle: true };
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const draw = (root) => {
  for (const place of root.querySelectorAll("[data-chart]:not([data-drawn])")) {
    if (place.closest("details:not([open])")) continue;
    place.dataset.drawn = "";
    const spec = { ...read(`chart-${place.dataset.chart}`), datasets: read(place.dataset.rows) };
    if (place.dataset.height) spec.height = Number(place.dataset.height);
    const options = {
      ast: true,
      actions: false,
      renderer: "svg",
      defaultStyle: false,
      tooltip: TOOLTIP,
      logLevel: LOG_ERRORS,
      config: read("chart-config"),
    };
    vegaEmbed(place, spec, options).catch((error) => {
      place.textContent = "This chart could not be drawn.";
      console.error(error);
    });
  }
};
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  const section = target && target.closest("details");
  if (section) section.open = true;
};
for (const section of document.querySelectorAll("details")) section.addEventListener("toggle", () => draw(section));
addEventListener("hashchange", reveal);
reveal();
draw(document);
