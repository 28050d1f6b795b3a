// Local times, where the keyboard is, and what happens when the console does not answer.
"use strict";

(() => {
  const two = (number) => String(number).padStart(2, "0");
  const local = (ms) => {
    const at = new Date(ms);
    return {
      date: `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`,
      time: `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`,
    };
  };

  const showTimes = (root) => {
    for (const each of root.querySelectorAll("time[data-ms]")) {
      const at = local(Number(each.dataset.ms));
      each.textContent = `${at.date} ${at.time}`;
    }
  };

  // A form field without a zone is local time; the server gets milliseconds.
  const connectSince = () => {
    const field = document.getElementById("since");
    const hidden = document.getElementById("since_ms");
    if (!field || !hidden) return;
    if (hidden.value) {
      const at = local(Number(hidden.value));
      field.value = `${at.date}T${at.time}`;
    }
    const copy = () => {
      hidden.value = field.value ? String(new Date(field.value).getTime()) : "";
    };
    field.addEventListener("input", copy);
    field.form.addEventListener("submit", copy);
  };

  const lost = (text) => {
    const banner = document.getElementById("lost");
    banner.textContent = text;
    banner.hidden = !text;
  };

  const place = () => {
    const active = document.activeElement;
    if (!active || !active.closest("#live")) return null;
    if (active.matches("a[href]")) return `a[href="${CSS.escape(active.getAttribute("href"))}"]`;
    const label = active.getAttribute("aria-label");
    return label ? `[aria-label="${CSS.escape(label)}"]` : null;
  };

  let focused = null;
  let scrolled = [];
  document.addEventListener("htmx:beforeRequest", (event) => {
    // Nobody looks: the next request is made when somebody does.
    if (document.hidden || !document.getSelection().isCollapsed) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", () => {
    focused = place();
    scrolled = [...document.querySelectorAll("#live .scroll")].map((each) => each.scrollLeft);
  });
  document.addEventListener("htmx:afterSwap", () => {
    lost("");
    const live = document.getElementById("live");
    showTimes(live);
    live.querySelectorAll(".scroll").forEach((each, at) => {
      each.scrollLeft = scrolled[at] || 0;
    });
    if (focused) live.querySelector(focused)?.focus({ preventScroll: true });
  });
  document.addEventListener("htmx:sendError", () => {
    lost("The console does not answer: what you see is old. Was it stopped? Start penstock ui again.");
  });
  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    lost(
      status === 401
        ? "Your session has ended. The terminal in which the console runs shows a link."
        : `The console answered with an error (${status}): what you see is old.`,
    );
  });
  document.addEventListener("visibilitychange", () => {
    const live = document.getElementById("live");
    if (!document.hidden && live) window.htmx.trigger(live, "refresh");
  });

  showTimes(document);
  connectSince();
})();
