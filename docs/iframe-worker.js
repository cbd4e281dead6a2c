// Run the search worker in an iframe if the site is opened from disk: browsers do not start a Worker from file://.
// mkdocs.yml names this file in extra.polyfills. Because its name contains "iframe-worker", the default polyfill is not loaded from the network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      this.inside = frame.contentWindow
      this.inside.postMessage = data => deliver(data, window, event => {
        this.dispatchEvent(event)
        this.onmessage?.(event)
      })
      this.loaded = new Promise((resolve, reject) => {
        const script = frame.contentDocument.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        frame.contentDocument.body.append(script)
      })
      this.loaded.catch(() => this.onerror?.(new ErrorEvent("error", {message: `${url} cannot be loaded`})))
    }

    postMessage(data) {
      this.loaded.then(() => deliver(data, this.inside, event => this.inside.dispatchEvent(event)), () => {})
    }

    terminate() {
      this.frame.remove()
    }
  }

  // Like a real worker, deliver a copy of the data, after the caller has returned.
  function deliver(data, receiver, send) {
    const copy = receiver.structuredClone(data)
    setTimeout(() => send(new receiver.MessageEvent("message", {data: copy})))
  }
}
