// The theme searches in a worker. Pages that are opened from the folder (file:) may start none: there, its script runs
// in a hidden frame. It takes the place of a script that the theme would fetch from another host.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.frame = frame;
      this.ready = new Promise((done) => {
        frame.onload = () => {
          const inner = frame.contentWindow, script = inner.document.createElement("script");
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          script.src = url;
          script.onload = () => done(inner);
          inner.document.body.append(script);
        };
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
