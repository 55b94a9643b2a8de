// The server has no option for the address that it listens on, and listens on all of them.
const net = require("node:net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  return typeof port === "object" ? listen.call(this, port, ...rest) : listen.call(this, Number(port), "127.0.0.1", ...rest);
};
